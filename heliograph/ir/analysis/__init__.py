"""Properties derived from a program: depth, lifetimes, carried values, the loss."""
