"""OLA's allocation of degrees: the impact of errors on the loss, and the candidates of the search."""
