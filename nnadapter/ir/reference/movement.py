"""The meanings of operations that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnadapter.ir.reference.meaning import AXIS, Example, OperationDoc, counting, tensor

_ANY = "Any operand."
_QUANTIZED = "A result of a per-tensor quantized operand is quantized as it is."

MEANINGS: Mapping[str, OperationDoc] = {
    "RESHAPE": OperationDoc(
        summary="The same elements in the same order, with other dimensions.",
        formula="flat(output) = flat(input), in row-major order",
        inputs={"input": _ANY},
        attributes={"shape": "The new dimensions, all of them known: neither -1 nor 0 stands for anything else."},
        outputs={"output": "The data type of `input`; dimensions `shape`; layout NCHW."},
        example=Example((counting(2, 3),), {"shape": (3, 2)}),
        traps=(
            "A 0 in `shape` is a size of 0, not ONNX's copy of the input's.",
            "The result of an NHWC operand has no layout any more: elements stay in the order that they have.",
            "simplify merges those that follow each other.",
            _QUANTIZED,
        ),
    ),
    "TRANSPOSE": OperationDoc(
        summary="The same elements, their axes in another order.",
        formula="output axis i is input axis perm[i]: output.dimensions[i] = input.dimensions[perm[i]]",
        inputs={"input": _ANY},
        attributes={
            "perm": "For every axis of the result, which axis of the input it is.",
            "output_layout": "How the result is to be read: `NCHW`, or `NHWC` for rank 4. It moves nothing.",
        },
        outputs={"output": "The data type of `input`, with the layout that `output_layout` says."},
        example=Example((counting(1, 2, 3),), {"perm": (2, 0, 1)}),
        traps=(
            "perm says where each axis comes from, not where it goes.",
            "perm is never left out, and has no negative axes.",
            "output_layout is a label: from NCHW to NHWC takes perm (0, 2, 3, 1) and output_layout NHWC.",
            "simplify and cancel_transposes merge those that follow each other; channels_last puts them off.",
            _QUANTIZED,
        ),
    ),
    "EXPAND": OperationDoc(
        summary="Axes of size 1 repeated, as numpy broadcasts.",
        formula="output[…, i, …] = input[…, 0, …] where the input has size 1, input[…, i, …] elsewhere",
        inputs={"input": _ANY},
        attributes={"shape": "The dimensions of the result, of at least the rank of `input`."},
        outputs={"output": "The data type of `input`; dimensions `shape`."},
        example=Example((tensor([[1.0], [2.0]]),), {"shape": (2, 2, 3)}),
        traps=(
            "Dimensions align at the last axis.",
            "A 1 in `shape` where the input has more is refused. ONNX's Expand allows it: there shapes broadcast both"
            " ways, and here is the result.",
            _QUANTIZED,
        ),
    ),
    "TILE": OperationDoc(
        summary="The whole operand, repeated along each axis.",
        formula="output[…, i, …] = input[…, i mod size, …]",
        inputs={"input": _ANY},
        attributes={"repeats": "How often along each axis: one number per axis, 0 or more."},
        outputs={"output": "The data type of `input`; every dimension times its number of repeats."},
        example=Example((counting(1, 2),), {"repeats": (2, 2)}),
        traps=("1 2 becomes 1 2 1 2, not 1 1 2 2.", _QUANTIZED),
    ),
    "CONCAT": OperationDoc(
        summary="Operands behind each other along an axis.",
        formula="output = inputs[0], inputs[1], … along axis",
        inputs={"inputs": "One or more of one data type and rank, equal in every dimension but that of the axis."},
        attributes={"axis": AXIS},
        outputs={"output": "The inputs' data type; along the axis, the sum of their sizes. Layout of the first."},
        example=Example((counting(2, 2), tensor([[10.0], [20.0]])), {"axis": 1}),
        traps=(
            "If all inputs are quantized alike, integers move and the result is quantized as they are. If they differ,"
            " the result says how it is quantized, and every input is rescaled to that.",
            "The number of inputs is not bounded.",
        ),
    ),
    "SPLIT": OperationDoc(
        summary="An operand cut into pieces along an axis.",
        formula="outputs[p] = input[…, split[0] + … + split[p - 1] : split[0] + … + split[p], …]",
        inputs={"input": _ANY},
        attributes={
            "axis": AXIS,
            "split": "Sizes of the pieces; as many outputs as numbers. Their sum is the size of the axis.",
        },
        outputs={"outputs": "One per number in `split`. The data type and layout of `input`."},
        example=Example((counting(1, 5),), {"axis": 1, "split": (2, 3)}),
        traps=(
            "`split` is always given: equal pieces are written out.",
            "A piece may have size 0, and there may be one piece alone.",
            _QUANTIZED,
        ),
    ),
    "DEPTH_TO_SPACE": OperationDoc(
        summary="Channels become blocks of pixels: a larger image with fewer channels.",
        formula="output[n, c, y * b + i, x * b + j] = input[n, k, y, x], b = block_size, C' = C / (b * b)\n"
        "DCR: k = (i * b + j) * C' + c    CRD: k = c * b * b + i * b + j",
        inputs={"input": "[N, C, H, W], or [N, H, W, C] if the layout says NHWC; C a multiple of block_size squared."},
        attributes={
            "block_size": "Height and width of a block, 1 or more.",
            "mode": "Which channels make a block. `DCR`: depth, column, row. `CRD`: column, row, depth, as PyTorch's"
            " PixelShuffle.",
        },
        outputs={"output": "[N, C / b², H * b, W * b], in the layout of `input`. Its data type."},
        example=Example((counting(1, 8, 1, 1),), {"block_size": 2, "mode": "CRD"}),
        traps=("The two modes give the same only if C' is 1.", _QUANTIZED),
    ),
    "SPACE_TO_DEPTH": OperationDoc(
        summary="Blocks of pixels become channels: a smaller image with more channels.",
        formula="output[n, (i * b + j) * C + c, y, x] = input[n, c, y * b + i, x * b + j], b = block_size",
        inputs={"input": "[N, C, H, W], or [N, H, W, C] if the layout says NHWC; H and W multiples of block_size."},
        attributes={"block_size": "Height and width of a block, 1 or more."},
        outputs={"output": "[N, C * b², H / b, W / b], in the layout of `input`. Its data type."},
        example=Example((np.arange(1, 9, dtype=np.float32).reshape(1, 2, 2, 2),), {"block_size": 2}),
        traps=("It undoes DEPTH_TO_SPACE of mode DCR, not of CRD.", _QUANTIZED),
    ),
}
"""By operation."""
