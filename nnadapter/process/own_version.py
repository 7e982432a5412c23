"""The version of nnadapter itself."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def own_version() -> str:
    """The version of nnadapter; empty where it was not installed as a package."""
    try:
        return version("nnadapter")
    except PackageNotFoundError:
        return ""
