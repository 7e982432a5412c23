"""The meanings of operations that choose or add elements by position."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import AXIS, Example, OperationDoc, counting, tensor

_ANY = "Any operand."
_QUANTIZED = "A result of a per-tensor quantized operand is quantized as it is."
_OUTSIDE = "Indices outside of the axis are undefined: the definition raises, a device may do as it likes."

MEANINGS: Mapping[str, OperationDoc] = {
    "SLICE": OperationDoc(
        summary="Every so many elements of some axes, forwards or backwards.",
        formula="output[…, i, …] = input[…, first + i * steps[a], …] on axis axes[a]; other axes are kept whole\n"
        "first = starts[a]; for a negative step min(starts[a], size - 1)\n"
        "size: step > 0: max(0, ceil((end - start) / step))\n"
        "      step < 0: max(0, ceil((min(start, size - 1) - max(end, -1)) / -step))",
        inputs={"input": _ANY},
        attributes={
            "starts": "For every axis named: the first element, from 0 to its size. A start equal to the size means,"
            " with a negative step, the last element.",
            "ends": "The first element that is left out, from 0 to the size; with a negative step, -(size + 1) stands"
            " for an end before element 0.",
            "axes": "Which axes, each once, from 0 to rank - 1, in any order.",
            "steps": "Distance of two elements taken; not 0. Negative: backwards.",
        },
        outputs={"output": "The data type and layout of `input`; the axes named have the sizes above."},
        example=Example((counting(2, 4),), {"starts": (0, 3), "ends": (1, -5), "axes": (0, 1), "steps": (1, -1)}),
        traps=(
            "Backwards through all of an axis of size 4: start 3, end -5, step -1. An end of -1 is refused; numpy would"
            " read it as the last element.",
            "Starts and ends are already in range: negative and very large ones of ONNX have been resolved.",
            "All four lists are of one length, in the order of `axes`.",
            "A result may have size 0.",
            _QUANTIZED,
        ),
    ),
    "GATHER": OperationDoc(
        summary="Slices of an operand along an axis, by index.",
        formula="output[a…, i…, b…] = input[a…, indices[i…], b…]",
        inputs={
            "input": "Any operand, of rank 1 or more.",
            "indices": "Positions along the axis, any rank; negative ones count from the end.",
        },
        attributes={"axis": AXIS},
        outputs={
            "output": "The data type of `input`; the dimensions of `indices` in the place of the axis; layout NCHW."
        },
        example=Example((counting(3, 2), tensor([[2, -3]])), {"axis": 0}),
        traps=(_OUTSIDE, "A scalar index takes the axis away.", _QUANTIZED),
    ),
    "GATHER_ELEMENTS": OperationDoc(
        summary="Elements of an operand, each by an index along one axis.",
        formula="output[a…, i, b…] = input[a…, indices[a…, i, b…], b…], the index standing on `axis`",
        inputs={
            "input": "Any operand, of rank 1 or more.",
            "indices": "As many axes as `input`; on others than `axis` not larger. Negative ones count from the end.",
        },
        attributes={"axis": AXIS},
        outputs={"output": "The data type of `input`; the dimensions of `indices`."},
        example=Example((counting(2, 3), tensor([[0, -1], [1, 1]])), {"axis": 1}),
        traps=(_OUTSIDE, "Nothing is broadcast: what `indices` does not reach is left out.", _QUANTIZED),
    ),
    "PAD": OperationDoc(
        summary="Elements added around an operand, or taken away.",
        formula="output[…, i, …] = kept[…, i - max(0, begin), …] inside; outside by `mode`\n"
        "kept: the input without the elements that negative pads take away",
        inputs={"input": _ANY},
        attributes={
            "mode": "What stands outside. `constant`: `value`. `edge`: the nearest element. `reflect`: mirrored at the"
            " border element, which is not repeated. `wrap`: from the other end.",
            "pads": "The begins of all axes, then the ends of all axes. Negative ones take elements away.",
            "value": "For `constant`: the number, converted to the data type of `input`.",
        },
        outputs={"output": "The data type and layout of `input`; every axis is larger by begin + end."},
        example=Example((counting(1, 3),), {"pads": (0, 1, 0, 2), "mode": "reflect"}),
        traps=(
            "pads is (begin 0, begin 1, …, end 0, end 1, …), not begin and end of each axis in turn.",
            "Taking away comes first: with pads of both signs, the other modes look at what is kept.",
            "`reflect` pads at most what is kept less one, `edge` and `wrap` need one element at least.",
            "`wrap` repeats the operand as often as it takes.",
            "Quantized operands: `value` is the integer that is put there, so real 0 is the zero point.",
            "fuse_pad lets the convolution or pool behind it do it.",
        ),
    ),
}
"""By operation."""
