"""The meanings of convolutions of volumes."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import Example, OperationDoc, counting, tensor

_INPUT = "Volumes [N, C, D, H, W]."
_BIAS = "[O], added to every element of channel o."
_ATTRIBUTES = {
    "strides": "(deep, down, across): how far the window moves from one output element to the next.",
    "pads": "(front, top, left, back, bottom, right): zeros around the input. First the begins, then the ends.",
    "dilations": "(deep, down, across): distance of two taps of the filter.",
    "group": "In how many shares channels are kept apart.",
}

MEANINGS: Mapping[str, OperationDoc] = {
    "CONV_3D": OperationDoc(
        summary="A convolution of volumes.",
        formula="output[n, o, z, y, x] = bias[o] + sum over c, h, i, j of filter[o, c, h, i, j] *\n"
        "    padded[n, g * C/group + c, z * deep + h * dilation_deep, y * down + i * dilation_down,"
        " x * across + j * dilation_across]\n"
        "with g = floor(o / (O/group)); sizes as in CONV_2D",
        inputs={"input": _INPUT, "filter": "[O, C/group, kD, kH, kW].", "bias": _BIAS},
        attributes=_ATTRIBUTES,
        outputs={"output": "[N, O, OD, OH, OW]. The data type of `input`."},
        example=Example((counting(1, 1, 2, 2, 2), tensor([[[[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 10.0]]]]]))),
        traps=("It has no fuse code, and no other layout.", "The filter is not mirrored."),
        flops="2 * output elements * C/group * kD * kH * kW, and 1 more for each with a bias",
    ),
    "CONV_3D_TRANSPOSE": OperationDoc(
        summary="A transposed convolution of volumes.",
        formula="full[n, o, z * deep + h * dilation_deep, y * down + i * dilation_down, x * across +"
        " j * dilation_across] +=\n    input[n, c, z, y, x] * filter[c, o - g * O/group, h, i, j]"
        "    for the c of group g = floor(o / (O/group))\n"
        "output = full without its pads + bias[o]; sizes as in CONV_2D_TRANSPOSE",
        inputs={
            "input": _INPUT,
            "filter": "[C, O/group, kD, kH, kW]: input channels first, the other way round than in CONV_3D.",
            "bias": _BIAS,
        },
        attributes={
            **_ATTRIBUTES,
            "strides": "(deep, down, across): how far apart input elements come to lie in the output.",
            "pads": "(front, top, left, back, bottom, right): how much is cut off the full result.",
            "dilations": "(deep, down, across): distance of two taps of the filter in the output.",
            "output_padding": "(deep, down, across): what is added at the far end of the full result, before pads are"
            " cut off; less than the larger of stride and dilation.",
        },
        outputs={"output": "[N, O, OD, OH, OW]. The data type of `input`."},
        example=Example((counting(1, 1, 1, 1, 2), counting(1, 1, 1, 2, 2)), {"strides": (1, 1, 2)}),
        traps=("It has no fuse code, and no other layout.", "Pads take away from the result."),
        flops="2 * input elements * O/group * kD * kH * kW, and 1 for each output element with a bias",
    ),
}
"""By operation."""
