"""From programs back to modules that can be trained."""
