"""Fixtures shared with the cache tests."""

from tests.caching.conftest import device

__all__ = ["device"]
