"""Candidates for delegation: the model's nodes as atoms, converted, in the form that suits a device.

atoms        nodes that get one verdict together, their split where a device refuses them, and expanded function ops
conversions  the prepared model, converted once for many shapes where that is possible, and random feeds for it
segments     a segment as the model that its device takes
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".atoms": "with_atoms",
        ".conversion_tracing": "sizes_left",
        ".conversions": "Conversions OPERATORS converted prepare random_feed",
    },
)
