"""The meanings of convolutions of images."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import FUSED, Example, OperationDoc, counting, tensor

_IMAGE = "Images [N, C, H, W], or [N, H, W, C] if the layout says NHWC."
_BIAS = "[O], added to every pixel of channel o; none adds nothing."
_ATTRIBUTES = {
    "strides": "(down, across): how far the window moves in the input from one output pixel to the next.",
    "pads": "(top, left, bottom, right): zeros around the input, 0 or more. First both begins, then both ends.",
    "dilations": "(down, across): distance of two taps of the filter in the input; 1 leaves no gap.",
    "group": "In how many shares channels are kept apart; equal to C for a depthwise convolution.",
}

MEANINGS: Mapping[str, OperationDoc] = {
    "CONV_2D": OperationDoc(
        summary="A convolution of images; grouped and depthwise ones, too.",
        formula="output[n, o, y, x] = activation(bias[o] + sum over c, i, j of\n"
        "    filter[o, c, i, j] * padded[n, g * C/group + c,\n"
        "                                y * down + i * dilation_down, x * across + j * dilation_across])\n"
        "with g = floor(o / (O/group)), and padded: the input with its pads\n"
        "OH = floor((H + top + bottom - dilation_down * (kH - 1) - 1) / down) + 1; OW alike",
        inputs={
            "input": _IMAGE,
            "filter": "[O, C/group, kH, kW], in this order whatever the layout of the image.",
            "bias": _BIAS,
        },
        attributes={**_ATTRIBUTES, **FUSED},
        outputs={"output": "[N, O, OH, OW], or [N, OH, OW, O] if the input is NHWC. The data type of `input`."},
        example=Example(
            (counting(1, 1, 3, 3), tensor([[[[1.0, 0.0], [0.0, -1.0]]]]), tensor([5.0])),
            {"pads": (0, 0, 1, 1), "strides": (2, 2), "fuse_code": "relu"},
        ),
        traps=(
            "The filter is not mirrored: it is a cross-correlation, as everywhere in this field.",
            "Pads are (top, left, bottom, right), not (top, bottom, left, right).",
            "A last window that does not fit whole is left out.",
            "Depthwise: the filter is [C * multiplier, 1, kH, kW] and group is C; there is no operation of its own.",
            "Quantized: zero points are subtracted first, so pads stand for real 0, which is the integer zero point."
            " The filter may be quantized along axis 0.",
            "Without a quantized result, quantized inputs give the sums in int32, and no fuse code applies.",
            "fuse_batch_normalization, fuse_scale_and_bias, fuse_activation and fuse_pad fold what stands around it"
            " into it.",
        ),
        flops="2 * output elements * C/group * kH * kW, 1 more for each with a bias, and the activation's steps",
    ),
    "CONV_2D_TRANSPOSE": OperationDoc(
        summary="A transposed convolution: every input pixel adds its multiple of the filter to the output.",
        formula="full[n, o, y * down + i * dilation_down, x * across + j * dilation_across] +=\n"
        "    input[n, c, y, x] * filter[c, o - g * O/group, i, j]    for the c of group g = floor(o / (O/group))\n"
        "output = activation(full without its pads + bias[o])\n"
        "OH = down * (H - 1) + dilation_down * (kH - 1) + 1 + output_padding_down - top - bottom; OW alike",
        inputs={
            "input": _IMAGE,
            "filter": "[C, O/group, kH, kW]: input channels first, the other way round than in CONV_2D.",
            "bias": _BIAS,
        },
        attributes={
            **_ATTRIBUTES,
            "strides": "(down, across): how far apart input pixels come to lie in the output.",
            "pads": "(top, left, bottom, right): how much is cut off the full result, 0 or more.",
            "dilations": "(down, across): distance of two taps of the filter in the output.",
            "output_padding": "(down, across): rows and columns that are added at the bottom and right end of the full"
            " result, before pads are cut off; less than the larger of stride and dilation.",
            **FUSED,
        },
        outputs={"output": "[N, O, OH, OW], or [N, OH, OW, O] if the input is NHWC. The data type of `input`."},
        example=Example(
            (counting(1, 1, 2, 2), tensor([[[[1.0, 2.0], [3.0, 4.0]]]])),
            {"strides": (2, 2), "pads": (0, 0, 1, 1), "output_padding": (1, 1)},
        ),
        traps=(
            "Pads take away from the result; they do not add to the input.",
            "Rows that output_padding adds are zeros plus bias, unless bottom pads cut them off again.",
            "Sizes are worked out: ONNX's auto_pad and output_shape have become pads.",
            "Of several groups, the output channels of group 0 come first.",
        ),
        flops="2 * input elements * O/group * kH * kW, 1 for each output element with a bias, and the activation's"
        " steps",
    ),
}
"""By operation."""
