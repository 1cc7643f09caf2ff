"""Bootstraps: what a program asks of them, and how one is written out."""
