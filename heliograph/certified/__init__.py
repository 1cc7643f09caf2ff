"""Certified inference: classifiers whose encrypted answers are robust or fair with a stated probability."""
