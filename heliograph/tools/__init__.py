"""Tools for those who write programs: debug, measure, simulate, refine, demo."""
