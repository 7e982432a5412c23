"""Candidates for delegation: the model's nodes as atoms, converted to each device's form.

atoms        nodes that get one verdict together, splits of refused atoms, and expanded function ops
conversions  conversions of the prepared model, shared by many shapes where possible
segments     segments as models in the form that their device takes
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".atoms": "with_atoms",
        ".conversion_tracing": "sizes_left",
        ".conversions": "Conversions OPERATORS converted prepare",
        ".random_feeds": "random_feed",
    },
)
