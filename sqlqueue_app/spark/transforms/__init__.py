"""What is computed of messages: from DataFrame to DataFrame, without a look at any database."""
