"""Serving artifacts over HTTP: a durable queue, worker processes, the HTTP application, and its client."""
