"""Ensembles of decision trees: one record for all libraries, and the readers of their files."""
