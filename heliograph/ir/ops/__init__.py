"""The table of operations, a file for each kind of op; `table.py` is the complete table."""
