"""The meanings of operations that read or write elements at positions that a tensor holds."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import AXIS, Example, OperationDoc, counting, tensor

_OUTSIDE = "Indices outside are undefined: the definition raises, a device may do as it likes."
_SAME = {"output": "Data type and dimensions of `input`; layout NCHW."}
_REDUCTION = (
    "What an update does to what is there. `none`: replaces it. `add`, `mul`, `max`, `min`: the old and the new"
    " together."
)
_EQUAL = (
    "Updates go in row-major order: of equal positions the last is kept with `none`, and all count with the others."
)
_FLOPS = "1 for each update, 0 with reduction `none`"

MEANINGS: Mapping[str, OperationDoc] = {
    "GATHER_ND": OperationDoc(
        summary="Slices of an operand, each by several indices at once.",
        formula="output[b…, i…, r…] = input[b…, indices[b…, i…, 0], indices[b…, i…, 1], …, r…]",
        inputs={
            "input": "Any operand, of rank 1 or more.",
            "indices": "[b…, i…, depth]: the last axis holds positions on `depth` axes behind the batch axes. Negative"
            " ones count from the end.",
        },
        attributes={"batch_dims": "How many leading axes both have in common, and which are not indexed."},
        outputs={"output": "The data type of `input`; dimensions of `indices` but the last, then the rest of `input`."},
        example=Example((counting(2, 2, 2), tensor([[[1]], [[0]]])), {"batch_dims": 1}),
        traps=(_OUTSIDE, "A depth of 0 takes whole items."),
    ),
    "SCATTER_ELEMENTS": OperationDoc(
        summary="An operand in which single elements were changed, each by an index along one axis.",
        formula="output = input; for every place (a…, i, b…) of indices:\n"
        "    output[a…, indices[a…, i, b…], b…] = reduction(output[…], updates[a…, i, b…])",
        inputs={
            "input": "Any operand, of rank 1 or more.",
            "indices": "As many axes as `input`; on others than `axis` not larger. Negative ones count from the end.",
            "updates": "Dimensions of `indices`.",
        },
        attributes={"axis": AXIS, "reduction": _REDUCTION},
        outputs=_SAME,
        example=Example(
            (counting(1, 3), tensor([[0, 0, -1]]), tensor([[10.0, 20.0, 30.0]])), {"axis": 1, "reduction": "add"}
        ),
        traps=(_EQUAL, _OUTSIDE, "The input is not changed in place: it may be read elsewhere."),
        flops=_FLOPS,
    ),
    "SCATTER_ND": OperationDoc(
        summary="An operand in which slices were changed, each at several indices at once.",
        formula="output = input; for every place i… of indices without the last axis:\n"
        "    output[indices[i…, 0], indices[i…, 1], …, r…] = reduction(output[…], updates[i…, r…])",
        inputs={
            "input": "Any operand, of rank 1 or more.",
            "indices": "[i…, depth]: the last axis holds positions on the first `depth` axes. Negative ones count from"
            " the end.",
            "updates": "Dimensions of `indices` but the last, then the dimensions of `input` from `depth` on.",
        },
        attributes={"reduction": _REDUCTION},
        outputs=_SAME,
        example=Example((counting(3, 2), tensor([[2], [0]]), tensor([[10.0, 20.0], [30.0, 40.0]])), {}),
        traps=(_EQUAL, _OUTSIDE, "The input is not changed in place: it may be read elsewhere."),
        flops=_FLOPS,
    ),
    "TENSOR_SCATTER": OperationDoc(
        summary="A cache in which each item of the batch was written from a position of its own on.",
        formula="output = input; output[b, …, p, …] = updates[b, …, i, …]\n"
        "p = indices[b] + i; circular: modulo the size of the axis",
        inputs={
            "input": "The cache, [B, …, L, …].",
            "updates": "As `input`, with at most L positions on the axis.",
            "indices": "[B]: where each item begins; none: at 0.",
        },
        attributes={
            "axis": "The axis of the positions, from 1 to rank - 1: axis 0 is the batch.",
            "mode": "`linear`: what is written must fit. `circular`: behind the last position comes the first.",
        },
        outputs=_SAME,
        example=Example(
            (tensor([[0.0, 0.0, 0.0]]), tensor([[1.0, 2.0]]), tensor([2])), {"axis": 1, "mode": "circular"}
        ),
        traps=(
            "With `linear`, positions beyond the cache are undefined.",
            "ONNX's negative axis has been resolved.",
        ),
    ),
    "ONE_HOT": OperationDoc(
        summary="A new axis that is `on` at the index and `off` elsewhere.",
        formula="output[a…, i, b…] = values[1] if i = indices[a…, b…] (or that + depth), else values[0]",
        inputs={
            "indices": "Positions, of any numeric type; fractions are cut off.",
            "values": "[2]: (off, on).",
        },
        attributes={
            "axis": "Where the new axis stands in the result, from 0 to the rank of `indices`.",
            "depth": "Its size, 1 or more.",
        },
        outputs={"output": "The data type of `values`; dimensions of `indices` with `depth` put in at the axis."},
        example=Example((tensor([0, -1, 5]), tensor([0.0, 9.0])), {"axis": 1, "depth": 3}),
        traps=(
            "off comes first.",
            "Negative indices count from the end; those outside of -depth to depth - 1 give off everywhere.",
        ),
    ),
    "REVERSE_SEQUENCE": OperationDoc(
        summary="The first elements of each sequence of a batch, in reverse.",
        formula="output[b, t] = input[b, lengths[b] - 1 - t] if t < lengths[b], else input[b, t]",
        inputs={
            "input": "Any operand, of rank 2 or more.",
            "lengths": "[B], 0 to the size of the time axis: how many elements of each turn around.",
        },
        attributes={
            "batch_axis": "The axis of the sequences, from 0 to rank - 1.",
            "time_axis": "The axis that is turned around; another one.",
        },
        outputs=_SAME,
        example=Example((counting(2, 3), tensor([2, 3])), {"batch_axis": 0, "time_axis": 1}),
        traps=("What lies behind the length stays where it is.", "A length of 0 or 1 changes nothing."),
    ),
}
"""By operation."""
