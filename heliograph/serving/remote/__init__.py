"""The client of a server at an address."""
