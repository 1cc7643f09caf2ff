"""What is read off a program: depth, lifetimes, carried values, the loss."""
