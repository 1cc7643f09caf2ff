"""General ways in for operations without a rule."""
