"""Families of invalid models: of the quantization of an operand: one more input of the model."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from nnadapter.ir import (
    DataType,
    Lifetime,
    Model,
    Operand,
    OperandType,
    Quantization,
)
from nnadapter.testing.mutations.changes import (
    Mutated,
    Mutation,
)


def _quantized(model: Model, dtype: DataType, dimensions: tuple[int, ...], **quantization: Any) -> Model:
    type_ = OperandType(dtype, dimensions, quantization=Quantization(**quantization))
    operand = Operand("quantized", type_, Lifetime.MODEL_INPUT)
    return replace(model, operands=(*model.operands, operand), inputs=(*model.inputs, len(model.operands)))


def quantized_real(random: Random, model: Model) -> Mutated:
    """A quantization of what is no integer."""
    dtype = random.choice((DataType.FLOAT32, DataType.FLOAT16, DataType.BOOL))
    return _quantized(model, dtype, (2,), scale=(0.5,), zero_point=(0,)), "'quantized'.*expected an integer data type"


def _integer(random: Random) -> DataType:
    return random.choice((DataType.INT8, DataType.UINT8, DataType.INT16, DataType.INT32, DataType.INT4))


def wrong_number_of_scales(random: Random, model: Model) -> Mutated:
    """More or fewer scales than the axis has sizes."""
    axis, wrong = random.choice(((None, 0), (None, 2), (0, 1), (0, 4)))
    changed = _quantized(
        model, _integer(random), (3,), scale=(0.5,) * wrong, zero_point=(0,) * (3 if axis == 0 else 1), axis=axis
    )
    return changed, f"'quantized' has {wrong} scales.*expected"


def wrong_number_of_zero_points(random: Random, model: Model) -> Mutated:
    """More or fewer zero points than scales."""
    wrong = random.choice((0, 2, 3))
    changed = _quantized(model, _integer(random), (3,), scale=(0.5,), zero_point=(0,) * wrong)
    return changed, f"'quantized' has 1 scales and {wrong} zero points, expected 1"


def unsound_scale(random: Random, model: Model) -> Mutated:
    """A scale that is not positive and finite."""
    scale = random.choice((0.0, -0.5, float("nan"), float("inf"), float("-inf")))
    changed = _quantized(model, _integer(random), (2,), scale=(0.5, scale), zero_point=(0, 0), axis=0)
    return changed, "'quantized' has a scale that is not positive and finite"


def scale_that_is_no_number(random: Random, model: Model) -> Mutated:
    """A scale that is no number."""
    scale = random.choice(("0.5", None, (0.5,)))
    changed = _quantized(model, _integer(random), (2,), scale=(scale,), zero_point=(0,))
    return changed, "'quantized' has a scale that is no number"


def zero_point_out_of_range(random: Random, model: Model) -> Mutated:
    """A zero point that the data type does not hold."""
    dtype, point = random.choice(((DataType.INT8, 128), (DataType.UINT8, -1), (DataType.UINT4, 16)))
    changed = _quantized(model, dtype, (2,), scale=(0.5,), zero_point=(point,))
    return changed, "'quantized' has a zero point outside its data type, expected"


def zero_point_that_is_no_integer(random: Random, model: Model) -> Mutated:
    """A zero point that is no whole number."""
    changed = _quantized(model, _integer(random), (2,), scale=(0.5,), zero_point=(random.choice((0.5, None, "0")),))
    return changed, "'quantized' has a zero point that is no whole number"


def quantized_along_no_axis(random: Random, model: Model) -> Mutated:
    """A quantization along an axis that is not there."""
    axis = random.choice((-1, 2, 7))
    changed = _quantized(model, _integer(random), (2, 1), scale=(0.5,), zero_point=(0,), axis=axis)
    return changed, f"'quantized' is quantized along axis {axis}, expected one of 0 to 1"


QUANTIZATION_MUTATIONS: tuple[Mutation, ...] = (
    quantized_real,
    wrong_number_of_scales,
    wrong_number_of_zero_points,
    unsound_scale,
    scale_that_is_no_number,
    zero_point_out_of_range,
    zero_point_that_is_no_integer,
    quantized_along_no_axis,
)
"""Every family of this file."""
