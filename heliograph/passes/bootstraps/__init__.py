"""The placement of bootstraps, and their steps."""
