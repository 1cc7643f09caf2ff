"""Tools for authors of programs: debug, measure, simulate, refine, demo."""
