"""The meanings of operations that look along one axis and keep it."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import AXIS, LIKE_INPUT, Example, OperationDoc, tensor

MEANINGS: Mapping[str, OperationDoc] = {
    "CUM_PROD": OperationDoc(
        summary="Running products along an axis.",
        formula="output[…, i, …] = product of input[…, j, …] for j <= i\n"
        "exclusive: for j < i. reverse: for j >= i, or j > i",
        inputs={"input": "The factors."},
        attributes={
            "axis": AXIS,
            "exclusive": "True: an element does not count itself; the first one (with reverse, the last) is 1.",
            "reverse": "True: from the end of the axis on. Elements keep their places.",
        },
        outputs=LIKE_INPUT,
        example=Example((tensor([1.0, 2.0, 3.0, 4.0]),), {"axis": 0, "exclusive": True, "reverse": True}),
        traps=("Integers wrap around.",),
    ),
    "HARDMAX": OperationDoc(
        summary="1 at the largest element along an axis, 0 at the others.",
        formula="output[…, i, …] = 1 if i is the first index of max(input[…, :, …]), else 0",
        inputs={"input": "The numbers."},
        attributes={"axis": AXIS},
        outputs=LIKE_INPUT,
        example=Example((tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]]),), {"axis": 1}),
        traps=("Of equal elements the first one gets the 1.", "A NaN counts as the largest."),
    ),
}
"""By operation."""
