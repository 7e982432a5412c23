"""Preparation of a model before placement: shapes propagated, constants folded."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".branch_decisions": "Conditions MOST_FORKS decision_values decisions_text",
        ".deciding_conditions": "decided decision_of",
        ".default_sizes": "default_shapes fits_windows moves_windows",
        ".device_forms": "expanded function_body",
        ".folding": "evaluate plain_result",
        ".node_hashes": "attribute_bytes structure_of tensor_bytes",
        ".prepare": "Prepared Specialized specialize",
    },
)
