"""Restrictions: a form that each refuses, and a similar form that is accepted and right."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import pytest

from nnadapter.drivers.openvino import RESTRICTIONS
from tests.drivers.openvino.harness import computed, context
from tests.models import numbers, run_whole

PICTURE = "float[1,4,5,5] x"
ROW = "float[2,3] x"
PAIRS = {
    "cubic": (
        "§11|10§",
        PICTURE,
        'y = Resize <mode = "cubic"> (x, §r, |§s)',
        "float[0] r = {}, float[4] s = {1, 1, 2, 2}",
    ),
    "batch": ("13", PICTURE, "y = Resize (x, , s)", "float[4] s = {§1|2§, 1, 2, 2}"),
    "size": ("13", PICTURE, 'y = Resize <mode = "linear"> (x, , s)', "float[4] s = {1, 1, §1.2|1.3§, 2}"),
    "corners": (
        "13",
        PICTURE,
        'y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , s)',
        "float[4] s = {1, 1, §2|1.2§, 2}",
    ),
    "symmetric": (
        "19",
        PICTURE,
        'y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel§|_symmetric§"> (x, , s)',
        "float[4] s = {1, 1, 2, 2}",
    ),
    "cropped": (
        "13",
        PICTURE,
        'y = Resize <coordinate_transformation_mode = "§half_pixel|tf_crop_and_resize§"> (x, r, , s)',
        "float[8] r = {0, 0, 0, 0, 1, 1, 1, 0.5}, int64[4] s = {1, 4, 7, 7}",
    ),
    "wrapped": ("19", PICTURE, 'y = Pad <mode = "§reflect|wrap§"> (x, p)', "int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}"),
    "upsampled": ("9", PICTURE, "y = Upsample (x, s)", "float[4] s = {1, 1, §2|1.2§, 2}"),
    "stride": (
        "13",
        PICTURE,
        'y = MaxPool <auto_pad = "SAME_UPPER", kernel_shape = [2, 2], strides = [§2, 2|3, 3§]> (x)',
    ),
    "dilation": (
        "13",
        PICTURE,
        'y = MaxPool <auto_pad = "SAME_UPPER", kernel_shape = [2, 2], dilations = [§1, 1|2, 2§]> (x)',
    ),
    "hanging": (
        "13",
        PICTURE,
        "y = AveragePool <ceil_mode = 1, count_include_pad = 1, pads = [1, 1, 0, 0], kernel_shape = [2, 2], "
        "strides = [§2, 2|3, 3§]> (x)",
    ),
    "column": (
        "13",
        "float[1,1,5,4] x",
        "y = Conv <kernel_shape = [2, 4], strides = [§1, 1|1, 2§]> (x, w)",
        "float[1,1,2,4] w = {1, 2, 3, 4, 5, 6, 7, 8}",
    ),
    "groups": (
        "13",
        PICTURE,
        "y = ConvTranspose <group = 2, output_shape = [§10, 10|9, 9§], strides = [2, 2]> (x, w)",
        f"float[4,1,2,2] w = {{{', '.join(map(str, range(16)))}}}",
    ),
    "even": ("13", PICTURE, "y = LRN <alpha = 1.0, size = §3|2§> (x)"),
    "bias": ("13", PICTURE, "y = LRN <bias = §2.0|1.5§, size = 3> (x)"),
    "slopes": ("16", "float[2,3,3] x", "y = PRelu (x, s)", "float[§1,3|3§] s = {1, 2, 3}"),
    "flat": ("13", "float[2,3§,2|§] x", "y = InstanceNormalization (x, s, s)", "float[3] s = {1, 2, 3}"),
    "norm": ("13", ROW, "y = LpNormalization <p = §1|2§> (x)"),
    "crossed": ("§13|12§", "float[2,3,4] x", "y = Softmax <axis = 1> (x)"),
    "equation": ("13", ROW, 'y = Einsum <equation = "ab->§ba|ab§"> (x)'),
    "ellipsis": ("13", "float[2,3,3] x", 'y = Einsum <equation = "§k|...§ab,§k|...§bc->§k|...§ac"> (x, x)'),
    "lone": ("13", "float[3,3] x", 'y = Einsum <equation = "ab,bc->§ac|b§"> (x, x)'),
    "slope": ("13", ROW, "y = HardSigmoid <beta = §0.1|0.0§> (x)"),
    "leaky": ("16", "float§[1]|§ x", "y = LeakyRelu (x)"),
    "selu": ("13", ROW, "y = Selu <alpha = §0.1|0.0§> (x)"),
    "no axes": ("18", ROW, "y = ReduceL1 <noop_with_empty_axes = §0|1§> (x)"),
    "bound": ("7", ROW, "y = Clip <§max = 1.0, |§min = 0.0> (x)"),
    "half": ("13", "float16[2,3] x", "y = Clip (x, m§, m|§)", "float16 m = {0}"),
    "constant": ("13", "float m", "y = Clip (c, m)", "float[§2|1§] c = {3§, 4|§}"),
    "scalars": ("§8|7§", "float[1] x", "y = Max (x, c)", "float[1] c = {1}"),
    "filled": ("13", "int32[2] x", "y = Pad (x, p§|, v§)", "int64[2] p = {1, 1}, int32 v = {7}"),
    "scales": ("12", "float[1,2] x", "y = QuantizeLinear (x, s)", "float[§1|2§] s = {0.1§|, 0.2§}"),
    "number": ("13", "float§[1]|§ x", "y = QuantizeLinear (x, s)", "float s = {0.1}"),
    "wide": ("21", "§int8|int16§[2] x", "y = DequantizeLinear (x, s)", "float16 s = {14336}"),
    "pixels": (
        "13",
        PICTURE,
        "y = Conv <pads = [1, 1, 1, 1], strides = [§1, 1|2, 2§]> (x, w)",
        "float[1,4,1,1] w = {1, 2, 3, 4}",
    ),
    "forgotten": (
        "13",
        "float[2,1,1] x",
        "y = LSTM <hidden_size = 1, input_forget = §0|1§> (x, w, w)",
        "float[1,4,1] w = {1, 2, 3, 4}",
    ),
    "backwards": (
        "13",
        "float[2,1,1] x",
        'y = RNN <hidden_size = 1, direction = "bidirectional", activations = ["Relu", "§Relu|Tanh§"]> (x, w, w)',
        "float[2,1,1] w = {1, 2}",
    ),
}
"""Opset, input, node, constants; §accepted|refused§ marks the difference."""


def model_of(form: int, opset: str, inputs: str, node: str, constants: str = "") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (y) <{constants}> {{ {node} }}'
    return onnx.parser.parse_model(re.sub("§(.*?)\\|(.*?)§", rf"\{form}", text, flags=re.DOTALL))


@pytest.mark.parametrize("parts", PAIRS.values(), ids=PAIRS)
def test_form_is_refused_and_similar_one_is_accepted(parts):
    opened, (accepted, refused) = context(), (model_of(form, *parts) for form in (1, 2))
    (verdict,) = opened.supported(refused)
    assert verdict.detail in {f"{op} {row.detail}" for row in RESTRICTIONS for op in row.ops.split()}
    assert all(opened.supported(accepted))
    kind = accepted.graph.input[0].type.tensor_type
    shape = [dimension.dim_value for dimension in kind.shape.dim]
    x = np.asarray(3 * numbers(*shape), onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    (expected,) = run_whole(accepted, {accepted.graph.input[0].name: x})
    np.testing.assert_allclose(computed(opened, accepted, [x])[0], expected, rtol=1e-3, atol=1e-5)


def test_where_with_one_value():
    """ONNX Runtime has no boolean Where to compare with."""
    opened, (accepted, refused) = (
        context(),
        (model_of(form, "16", "bool[3] x", "y = Where (x, §z|x§, §z|x§)", "bool[1] z = {1}") for form in (1, 2)),
    )
    (verdict,) = opened.supported(refused)
    assert verdict.detail == "Where is not compiled if both inputs are the same value"
    assert all(opened.supported(accepted))
    (y,) = computed(opened, accepted, [np.array([True, False, True])])
    assert y.tolist() == [True] * 3
