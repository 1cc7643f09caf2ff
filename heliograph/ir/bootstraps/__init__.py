"""Bootstraps: their requirements, and their expansion into ops."""
