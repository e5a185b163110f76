"""The format of a lake: tables, columns, files, rollup arithmetic, and search. No Django, no Spark."""
