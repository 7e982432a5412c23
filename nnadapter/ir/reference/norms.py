"""The meanings of normalizations by a norm."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import AXIS, LIKE_INPUT, Example, OperationDoc, tensor

MEANINGS: Mapping[str, OperationDoc] = {
    "RMS_NORMALIZATION": OperationDoc(
        summary="Every item divided by its root mean square, over the last axes.",
        formula="output = input / sqrt(mean of input^2 over the axes from `axis` to the last + epsilon) * scale",
        inputs={"input": "Any rank.", "scale": "Broadcasts to the dimensions of `input`."},
        attributes={
            "axis": f"The first of the axes that the mean is taken over. {AXIS}",
            "epsilon": "Added to the mean of squares, under the square root.",
        },
        outputs={"output": "The data type of `scale`; dimensions and layout of `input`."},
        example=Example((tensor([[3.0, 4.0]]), tensor([1.0, 10.0])), {"axis": 1, "epsilon": 0.0}),
        traps=(
            "No mean is subtracted, and there is no bias.",
            "The result has the data type of the scale, which may differ from the input's.",
        ),
    ),
    "LP_NORMALIZATION": OperationDoc(
        summary="Elements along an axis, divided by their norm.",
        formula="output[…, i, …] = input[…, i, …] / (sum over j of |input[…, j, …]| ^ p) ^ (1 / p)",
        inputs={"input": "The numbers."},
        attributes={"axis": AXIS, "p": "1: the sum of absolute values. 2: the square root of the sum of squares."},
        outputs=LIKE_INPUT,
        example=Example((tensor([[3.0, 4.0], [0.0, 0.0]]),), {"axis": 1}),
        traps=("Where the norm is 0 the result is 0, not NaN.", "There is no epsilon."),
    ),
    "MEAN_VARIANCE_NORMALIZATION": OperationDoc(
        summary="Brought to mean 0 and deviation 1 over any axes.",
        formula="output = (input - mean) / (deviation + epsilon)\n"
        "mean: over `axes`; deviation = sqrt(mean of (input - mean)^2 over `axes`)",
        inputs={"input": "The numbers."},
        attributes={
            "axes": "Which axes mean and deviation are taken over: ascending, at least one, from 0 to rank - 1.",
            "epsilon": "Added to the deviation.",
        },
        outputs=LIKE_INPUT,
        example=Example((tensor([[1.0, 3.0], [0.0, 4.0]]),), {"axes": (1,)}),
        traps=(
            "epsilon is added to the deviation, outside of the square root. Other normalizations add it inside.",
            "The deviation divides by the number of elements, not by one less.",
        ),
    ),
}
"""By operation."""
