"""The client's cryptography: a secret key, what is encrypted under it, and the keys that a server is given."""
