"""OLA's allocation of degrees: what an error does to the loss, and the search."""
