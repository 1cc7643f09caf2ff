"""Rules for torch's operations, a file for each kind."""
