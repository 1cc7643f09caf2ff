"""Engines and workers that evaluate jobs."""
