"""What the project measures: `python -m benchmarks list`."""
