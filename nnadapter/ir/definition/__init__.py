"""Definition of the adapter IR: the results of every operation, slowly and obviously, in numpy, and its documentation.

An operation means what its function here computes. Documentation, the conformance kit, passes and tests refer to it.
A file holds a family of operations, as in `nnadapter.ir.operations`, with their documentation as text. `models` holds
the table of all functions, and runs them one after the other. `reference` joins rows, documentation and definitions.
"""

from __future__ import annotations

from nnadapter.ir.definition.models import FUNCTIONS, by_definition
from nnadapter.process.lazily import lazily

__all__ = ["FUNCTIONS", "by_definition"]

__getattr__ = lazily(
    __name__,
    {
        ".documentation": "doc_of",
        ".onnx_ops": "ONNX_OPS",
        ".reference": "Entry entry_of example_text facts formula_text signature_text to_dict to_text",
    },
)
