"""The networks that the benchmarks take, and the tables of small modules of model_coverage.py."""
