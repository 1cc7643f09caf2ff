"""The durable queue and the files that it owns."""
