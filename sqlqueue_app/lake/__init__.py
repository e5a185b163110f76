"""What a lake looks like: its tables and their columns, and what is computed in them. No Django, no Spark."""
