"""Where bootstraps are placed, and how they are written."""
