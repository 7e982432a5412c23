"""Makers of the models that benchmarks and tests run."""
