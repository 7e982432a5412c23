"""Reference implementation of every operation in numpy, written for clarity, not speed, and its documentation.

The functions define the operations. Each file has a family of `nnadapter.ir.operations`, with documentation as text.
`models` runs models; `reference` combines rows, documentation and definitions.
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
