"""Tools for those who write programs: debug, measure, simulate, demo."""
