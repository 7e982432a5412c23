"""Families of invalid models: a valid model spoilt in one way, which must be refused."""
