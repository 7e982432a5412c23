"""The meanings of pooling of images, and what all poolings share."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import Example, OperationDoc, counting

ATTRIBUTES = {
    "kernel_shape": "Size of the window along each spatial axis.",
    "strides": "How far the window moves along each spatial axis from one output element to the next.",
    "pads": "What is added around the input: the begins of all spatial axes, then the ends, so (top, left, bottom,"
    " right) for images. Each is less than the window's extent.",
    "dilations": "Distance of two elements of the window along each spatial axis.",
    "ceil_mode": "True: a last window that does not fit whole counts as well, if it starts in the input or in the pads"
    " before it.",
}
"""Of every pooling."""
COUNT_INCLUDE_PAD = (
    "True: pads count in the divisor. False: the divisor is the number of elements of the input in the window."
)
"""Of the average pools."""
SIZES = (
    "extent = dilation * (kernel - 1) + 1\n"
    "OH = floor((H + begin + end - extent) / stride) + 1; with ceil_mode ceil in the place of floor, and one less if\n"
    "     the last window would start at H + begin or behind it"
)
"""The sizes of the result of every pooling."""
CEIL = "With ceil_mode, what a window reaches beyond the pads counts for nothing: not as a maximum, not in a divisor."
"""A trap of every pooling."""
_INPUT = "Images [N, C, H, W], or [N, H, W, C] if the layout says NHWC."
_OUTPUT = "[N, C, OH, OW], or [N, OH, OW, C] if the input is NHWC. The data type of `input`."
_EXAMPLE = Example(
    (counting(1, 1, 3, 3),), {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (1, 1, 0, 0), "ceil_mode": True}
)
_FLOPS = "output elements * kernel_shape[0] * kernel_shape[1]"

MEANINGS: Mapping[str, OperationDoc] = {
    "MAX_POOL_2D": OperationDoc(
        summary="The largest element of each window of an image.",
        formula="output[n, c, y, x] = max over i, j of padded[n, c, y * down + i * dilation_down, x * across +"
        f" j * dilation_across]\n{SIZES}",
        inputs={"input": _INPUT},
        attributes=ATTRIBUTES,
        outputs={"output": _OUTPUT},
        example=_EXAMPLE,
        traps=(
            "Pads are -inf, for integers the smallest number, and not 0: a window of nothing but pads gives that.",
            CEIL,
            "Quantized operands: the integers are compared, and the result is quantized as the input is.",
            "ONNX's second output, the positions, is another operation: MAX_POOL_2D_WITH_INDICES.",
            "fuse_pad takes a PAD before it into its pads.",
        ),
        flops=_FLOPS,
    ),
    "AVERAGE_POOL_2D": OperationDoc(
        summary="The mean of each window of an image.",
        formula="output[n, c, y, x] = sum over i, j of padded[n, c, y * down + i * dilation_down, x * across +"
        f" j * dilation_across] / divisor[y, x]\n{SIZES}",
        inputs={"input": _INPUT},
        attributes={**ATTRIBUTES, "count_include_pad": COUNT_INCLUDE_PAD},
        outputs={"output": _OUTPUT},
        example=_EXAMPLE,
        traps=(
            "The divisor differs from window to window: with count_include_pad false at every padded border, with"
            " ceil_mode at the last window whatever count_include_pad says.",
            CEIL,
            "A global pool is REDUCE_MEAN over both axes.",
            "fuse_pad takes a PAD before it into its pads, with count_include_pad true.",
        ),
        flops=_FLOPS,
    ),
}
"""By operation."""
