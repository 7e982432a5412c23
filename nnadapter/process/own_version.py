"""The version of nnadapter itself."""

from __future__ import annotations

from nnadapter.process.cache import remembered


@remembered(1)
def own_version() -> str:
    """The version of nnadapter; empty where it was not installed as a package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nnadapter")
    except PackageNotFoundError:
        return ""
