"""Random models of the adapter IR, with values that keep results small enough to compare."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".maker": "Accept Maker RandomCase check evaluate outputs_of",
        ".recipes": "RECIPES UNREACHED attempt",
    },
)
