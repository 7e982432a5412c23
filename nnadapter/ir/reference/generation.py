"""The meanings of operations that make a tensor from next to nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnadapter.ir.reference.meaning import Example, OperationDoc, counting

MEANINGS: Mapping[str, OperationDoc] = {
    "FILL": OperationDoc(
        summary="One number, everywhere.",
        formula="output[…] = value",
        inputs={"value": "A scalar: rank 0."},
        attributes={"shape": "The dimensions of the result; empty for a scalar."},
        outputs={"output": "The data type of `value`; dimensions `shape`."},
        example=Example((np.array(7.0, np.float32),), {"shape": (2, 2)}),
        traps=("[1] is no scalar, and is refused.",),
    ),
    "RANGE": OperationDoc(
        summary="Numbers at equal distances.",
        formula="output[i] = start + i * delta for i = 0 to count - 1",
        inputs={"start": "The first number, a scalar.", "delta": "The distance, a scalar; it may be negative."},
        attributes={"count": "How many numbers, 0 or more."},
        outputs={"output": "[count]. The data type of `start`."},
        example=Example((np.array(10, np.int64), np.array(-3, np.int64)), {"count": 4}),
        traps=(
            "There is no limit: the converter has worked out how many numbers lie before ONNX's.",
            "Multiply; do not add up: roundings of sums grow.",
        ),
    ),
    "EYE_LIKE": OperationDoc(
        summary="Ones on a diagonal, zeros elsewhere, in the dimensions of another matrix.",
        formula="output[i, j] = 1 if j - i = k, else 0",
        inputs={"input": "A matrix; its dimensions alone matter, its numbers do not."},
        attributes={
            "to": "The data type of the result.",
            "k": "Which diagonal: 0 the main one, 1 the one above it, -1 the one below.",
        },
        outputs={"output": "The data type `to`; dimensions of `input`."},
        example=Example((counting(2, 3),), {"to": "int32", "k": 1}),
        traps=("The matrix need not be square.", "`to` is never left out, and is not the input's by default."),
    ),
}
"""By operation."""
