from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from nnadapter.errors import InvalidModelError
from nnadapter.ir import SCHEMAS, DataType, Layout
from tests.ir.operations.shape_oracle import flops, infer, operand

_PARAMETERS = {"clip": (0.0, 6.0), "hard_sigmoid": (0.2, 0.5), "hard_swish": (1 / 6, 0.5), "leaky_relu": (0.1,)}


@given(mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_dims=4))
def test_broadcasting_equals_numpy(shapes):
    (result,) = infer("SUM", [operand(*shape) for shape in shapes.input_shapes])
    assert result.dimensions == shapes.result_shape


@given(st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), min_size=2, max_size=2))
def test_broadcasting_refuses_what_numpy_refuses(shapes):
    operands = [operand(*shape) for shape in shapes]
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(InvalidModelError, match=r"ADD: dimensions .* do not broadcast"):
            infer("ADD", operands)
    else:
        assert infer("ADD", operands)[0].dimensions == expected


@pytest.mark.parametrize("type_", ["ABS", "RELU", "SIGMOID", "CLIP", "GELU", "ELU", "ASSIGN"])
def test_unary_keeps_type_and_layout(type_: str):
    image = operand(1, 4, 4, 3, layout="NHWC")
    assert infer(type_, [image]) == (image,)


@pytest.mark.parametrize("type_", ["EQUAL", "GREATER", "LESS_EQUAL"])
def test_comparison_returns_bool(type_: str):
    (result,) = infer(type_, [operand(2, 1), operand(3)])
    assert result == operand(2, 3, dtype="bool")


def test_cast_returns_the_requested_type():
    assert infer("CAST", [operand(1, 2, 2, 3, layout="NHWC")], to="int8")[0].dtype is DataType.INT8
    with pytest.raises(InvalidModelError, match="CAST: attribute 'to' is 'int9', expected one of"):
        infer("CAST", [operand(2)], to="int9")


def test_where_has_the_type_of_its_values():
    condition = operand(2, 1, dtype="bool")
    assert infer("WHERE", [condition, operand(3), operand(2, 3)]) == (operand(2, 3),)


def test_pow_keeps_the_type_of_the_base():
    assert infer("POW", [operand(2), operand(dtype="int64")]) == (operand(2),)


def test_prelu_slope_broadcasts_one_way_only():
    assert infer("PRELU", [operand(1, 3, 2, 2), operand(3, 1, 1)]) == (operand(1, 3, 2, 2),)
    with pytest.raises(InvalidModelError, match=r"PRELU: slope has dimensions \[2, 3\]"):
        infer("PRELU", [operand(3), operand(2, 3)])


def test_mod_on_floats_needs_fmod():
    assert infer("MOD", [operand(2), operand(2)], fmod=True) == (operand(2),)
    with pytest.raises(InvalidModelError, match="MOD: fmod is False"):
        infer("MOD", [operand(2), operand(2)])


@pytest.mark.parametrize("swap", [False, True])
def test_binary_result_is_nhwc_if_one_operand_is(swap: bool):
    pair = [operand(1, 4, 4, 3, layout="NHWC"), operand(1, 1, 1, 3)]
    assert infer("ADD", pair[::-1] if swap else pair)[0].layout is Layout.NHWC


@pytest.mark.parametrize("code", SCHEMAS["ADD"].attribute("fuse_code").choices)
def test_fused_activation_has_the_flops_of_the_activation(code: str):
    pair = [operand(2, 3), operand(3)]
    alone = {"gelu_tanh": ("GELU", {"approximate": "tanh"})}.get(code, (code.upper(), {}))
    steps = 0 if code == "none" else flops(alone[0], [operand(2, 3)], **alone[1])
    assert flops("ADD", pair, fuse_code=code, fuse_parameters=_PARAMETERS.get(code, ())) == 6 + steps


def test_fuse_parameters_must_fit_the_code():
    with pytest.raises(InvalidModelError, match=r"fuse_parameters has 1 values \[6.0\], expected 2 \(min, max\)"):
        infer("ADD", [operand(2), operand(2)], fuse_code="clip", fuse_parameters=[6.0])
    with pytest.raises(InvalidModelError, match=r"expected 0 \(none\) for fuse_code 'none'"):
        infer("ADD", [operand(2), operand(2)], fuse_parameters=[6.0])


def test_fuse_code_must_fit_the_data_type():
    pair = [operand(2, dtype="int32")] * 2
    assert infer("MUL", pair, fuse_code="relu")
    with pytest.raises(InvalidModelError, match="MUL: fuse_code is 'tanh' on int32"):
        infer("MUL", pair, fuse_code="tanh")


def test_flops_count_steps_per_output_element():
    assert flops("RELU", [operand(2, 3)]) == 6
    assert flops("ADD", [operand(2, 1), operand(3)]) == 6
    assert flops("SUM", [operand(2), operand(2), operand(2)]) == 4
    assert flops("CAST", [operand(2)], to="int8") == 0


@pytest.mark.parametrize("type_", ["ASSIGN", "WHERE", "CAST", "RESHAPE", "CONCAT", "PAD", "SLICE", "RESIZE_NEAREST"])
def test_data_movement_has_no_flops(type_: str):
    assert SCHEMAS[type_].flops((operand(4),), (operand(4),), {}) == 0
