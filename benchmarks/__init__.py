"""Benchmarks of nnadapter; `python -m benchmarks` lists them."""
