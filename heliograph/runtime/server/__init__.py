"""The server: a compiled artifact and one client's evaluation keys, on any backend."""
