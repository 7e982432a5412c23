"""The meanings of pooling beside the two pools of images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnadapter.ir.reference.meaning import Example, OperationDoc, counting, tensor
from nnadapter.ir.reference.pooling import ATTRIBUTES, CEIL, COUNT_INCLUDE_PAD, SIZES
from nnadapter.ir.schema import AttributeValue

_IMAGES = ("Images [N, C, H, W]; no other layout.", "[N, C, OH, OW]. The data type of `input`.")
_VOLUMES = ("Volumes [N, C, D, H, W]; no other layout.", "[N, C, OD, OH, OW]. The data type of `input`.")
_ONE_LAYOUT = "It has no other layout than ONNX's, and no quantized form."
_STORAGE = (
    "How a place within the sizes of the input becomes a number. `row_major`: the last spatial axis counts fastest."
    " `column_major`: the first one does."
)
_POSITIONS = (
    "int64, as `output`: the position of each maximum in the whole input, (n * C + c) * spatial elements + the place"
    " within them."
)
_NORM = {"p": "The power, 1 or more."}


def _pool(
    rank: int,
    summary: str,
    formula: str,
    *traps: str,
    more: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    values: Mapping[str, AttributeValue] | None = None,
) -> OperationDoc:
    image, result = _IMAGES if rank == 2 else _VOLUMES
    given: dict[str, AttributeValue] = {"kernel_shape": (2,) * rank, "strides": (1,) * (rank - 1) + (2,)}
    return OperationDoc(
        summary=summary,
        formula=f"{formula}\n{SIZES}",
        inputs={"input": image},
        attributes={**ATTRIBUTES, **(more or {})},
        outputs={"output": result, **(outputs or {})},
        example=Example((counting(1, 1, *(2,) * (rank - 1), 4),), {**given, **(values or {})}),
        traps=(*traps, CEIL, _ONE_LAYOUT),
        flops="output elements * elements of the window" + (" * 3" if "p" in (more or {}) else ""),
    )


_LOWEST = "Pads are -inf, for integers the smallest number, and not 0."
_ZEROS = "Pads are zeros. Nothing is divided by the number of elements."
_INDICES = {"indices": _POSITIONS}

MEANINGS: Mapping[str, OperationDoc] = {
    "MAX_POOL_3D": _pool(
        3, "The largest element of each window of a volume.", "output[n, c, z, y, x] = max of the window", _LOWEST
    ),
    "AVERAGE_POOL_3D": _pool(
        3,
        "The mean of each window of a volume.",
        "output[n, c, z, y, x] = sum of the window / divisor[z, y, x]",
        "The divisor differs from window to window, as in AVERAGE_POOL_2D.",
        more={"count_include_pad": COUNT_INCLUDE_PAD},
    ),
    "LP_POOL_2D": _pool(
        2,
        "The p-norm of each window of an image.",
        "output[n, c, y, x] = (sum of |each element of the window| ^ p) ^ (1 / p)",
        _ZEROS,
        more=_NORM,
    ),
    "LP_POOL_3D": _pool(
        3,
        "The p-norm of each window of a volume.",
        "output[n, c, z, y, x] = (sum of |each element of the window| ^ p) ^ (1 / p)",
        _ZEROS,
        more=_NORM,
        values={"p": 1},
    ),
    "MAX_POOL_2D_WITH_INDICES": _pool(
        2,
        "The largest element of each window of an image, and where it lies.",
        "output[n, c, y, x] = max of the window; indices: its first position\n"
        "row_major: (n * C + c) * H * W + row * W + column; column_major: (n * C + c) * H * W + column * H + row",
        _LOWEST,
        "Positions count elements of the whole input, batch and channels included, without pads.",
        "Of equal elements the first one in the order of the window's rows is meant, in both orders of storage.",
        more={"storage_order": _STORAGE},
        outputs=_INDICES,
    ),
    "MAX_POOL_3D_WITH_INDICES": _pool(
        3,
        "The largest element of each window of a volume, and where it lies.",
        "output[n, c, z, y, x] = max of the window; indices: its first position\n"
        "row_major: (n * C + c) * D * H * W + (depth * H + row) * W + column\n"
        "column_major: (n * C + c) * D * H * W + (column * H + row) * D + depth",
        _LOWEST,
        "Positions count elements of the whole input, batch and channels included, without pads.",
        "Of equal elements the first one in the order of the window's rows is meant, in both orders of storage.",
        more={"storage_order": _STORAGE},
        outputs=_INDICES,
    ),
    "MAX_UNPOOL_2D": OperationDoc(
        summary="What MAX_POOL_2D_WITH_INDICES found, put back where it was; zeros elsewhere.",
        formula="output = 0; flat(output)[indices[n, c, y, x]] = input[n, c, y, x]",
        inputs={
            "input": "The maxima, [N, C, H, W].",
            "indices": "[N, C, H, W]: positions in the whole output, counted in row-major order.",
        },
        attributes={"output_shape": "(height, width) of the result."},
        outputs={"output": "[N, C, height, width]. The data type of `input`."},
        example=Example(
            (tensor([[[[6.0, 8.0]]]]), tensor([[[[5, 7]]]])),
            {"output_shape": (2, 4)},
        ),
        traps=(
            "Positions count elements of the whole output, batch and channels included.",
            "ONNX's MaxUnpool of another rank becomes it with two RESHAPE: positions know no axes.",
            "Of equal positions the last one is kept.",
        ),
    ),
    "COL_TO_IM": OperationDoc(
        summary="Columns that are blocks of an image, put back together; where blocks overlap they are added.",
        formula="output[n, c, y * down + i * dilation_down - top, x * across + j * dilation_across - left] +=\n"
        "    input[n, (c * kH + i) * kW + j, y * columns of blocks + x]    where that lies inside the image",
        inputs={"input": "[N, C * elements of a block, blocks]."},
        attributes={
            "image_shape": "Sizes of the image, one per spatial axis.",
            "kernel_shape": "Sizes of a block.",
            "strides": "Distance of two blocks along each axis.",
            "pads": "What lies around the image: all begins, then all ends. What falls there is dropped.",
            "dilations": "Distance of two elements of a block along each axis.",
        },
        outputs={"output": "[N, C, image_shape…]. The data type of `input`."},
        example=Example(
            (np.ones((1, 4, 4), np.float32),),
            {
                "image_shape": (3, 3),
                "kernel_shape": (2, 2),
                "strides": (1, 1),
                "pads": (0, 0, 0, 0),
                "dilations": (1, 1),
            },
        ),
        traps=(
            "Every list must be given: there are no defaults.",
            "The image may have any number of spatial axes; the formula is for two.",
            "Blocks stand in row-major order, as do the elements of a block.",
        ),
    ),
}
"""By operation."""
