"""What tests of kept plans share with those of the cache."""

from tests.caching.conftest import device

__all__ = ["device"]
