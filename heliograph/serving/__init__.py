"""Artifacts behind an address: a durable queue, worker processes, the HTTP application, and its client."""
