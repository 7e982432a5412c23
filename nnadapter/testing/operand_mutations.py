"""Invalid models with a wrong operand: type, value, quantization, lifetime, or model input and output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from re import escape
from typing import Any

import numpy as np

from nnadapter.ir import DataType, Layout, Lifetime, Model, Operand, OperandType, Operation, Quantization, schema_of
from nnadapter.ir.schema import OperationSchema

Mutated = tuple[Model, str] | None
"""An invalid model, and a pattern for the message that it must be refused with; None where nothing could be spoilt."""
Mutation = Callable[[Random, Model], Mutated]
"""A family: a valid model made invalid, each time in the same way. Its name says which."""


def with_operand(model: Model, index: int, **changes: Any) -> Model:
    """The model with one operand changed."""
    operands = list(model.operands)
    operands[index] = replace(operands[index], **changes)
    return replace(model, operands=tuple(operands))


def with_type(model: Model, index: int, **changes: Any) -> Model:
    """The model with the type of one operand changed."""
    return with_operand(model, index, type=replace(model.operands[index].type, **changes))


def with_operation(model: Model, position: int, **changes: Any) -> Model:
    """The model with one operation changed."""
    operations = list(model.operations)
    operations[position] = replace(operations[position], **changes)
    return replace(model, operations=tuple(operations))


def operands_of(model: Model, *lifetimes: Lifetime) -> list[int]:
    """Operands of these lifetimes, or all."""
    return [index for index, operand in enumerate(model.operands) if operand.lifetime in (lifetimes or (*Lifetime,))]


def results_of(model: Model) -> list[int]:
    """What operations make."""
    return [operand for operation in model.operations for operand in operation.outputs]


def named(model: Model, index: int) -> str:
    """A pattern for the name of an operand as messages show it."""
    return escape(repr(model.operands[index].name))


def positions(model: Model, fits: Callable[[Operation, OperationSchema], bool]) -> list[int]:
    """Operations that fit."""
    return [index for index, operation in enumerate(model.operations) if fits(operation, schema_of(operation.type))]


def at(model: Model, position: int) -> str:
    """A pattern for how messages about an operation begin."""
    return f"operation {position}, .*{model.operations[position].type}: "


def with_input(model: Model, type_: OperandType) -> tuple[Model, int]:
    """The model with one more input, and which operand it is."""
    operands = (*model.operands, Operand("another", type_, Lifetime.MODEL_INPUT))
    return replace(model, operands=operands, inputs=(*model.inputs, len(model.operands))), len(model.operands)


def duplicate_name(random: Random, model: Model) -> Mutated:
    """Two operands of one name."""
    first, other = random.sample(range(len(model.operands)), 2)
    name = model.operands[first].name
    return with_operand(model, other, name=name), f"operand {max(first, other)} is called {escape(repr(name))}"


def name_is_no_text(random: Random, model: Model) -> Mutated:
    """A name that is no text."""
    index = random.randrange(len(model.operands))
    return with_operand(model, index, name=random.choice((None, 7, b"x"))), f"operand {index} .*expected a text"


def negative_dimension(random: Random, model: Model) -> Mutated:
    """A dimension below 0."""
    index = random.randrange(len(model.operands))
    return with_type(model, index, dimensions=(2, -1)), f"{named(model, index)}.*expected no dimension below 0"


def unknown_dimension(random: Random, model: Model) -> Mutated:
    """A dimension that is no whole number."""
    index = random.randrange(len(model.operands))
    size = random.choice((None, "N", 2.0))
    return with_type(model, index, dimensions=(2, size)), f"{named(model, index)}.*expected whole numbers"


def unknown_data_type(random: Random, model: Model) -> Mutated:
    """A data type that is none."""
    index = random.randrange(len(model.operands))
    dtype = random.choice(("float33", None, np.float32))
    return with_type(model, index, dtype=dtype), f"{named(model, index)}.*expected a DataType"


def layout_of_another_rank(random: Random, model: Model) -> Mutated:
    """A layout of images on what is none."""
    indices = [index for index, operand in enumerate(model.operands) if operand.type.rank != 4]
    index = random.choice(indices)
    return with_type(model, index, layout=Layout.NHWC), f"{named(model, index)}.*expected rank 4"


def constant_without_value(random: Random, model: Model) -> Mutated:
    """A constant that holds nothing."""
    index = random.choice(operands_of(model, Lifetime.CONSTANT))
    return with_operand(model, index, value=None), f"{named(model, index)} is constant and has no contents"


def value_of_another_lifetime(random: Random, model: Model) -> Mutated:
    """Contents on what is no constant."""
    index = random.choice(operands_of(model, Lifetime.MODEL_INPUT, Lifetime.MODEL_OUTPUT, Lifetime.TEMPORARY))
    type_ = model.operands[index].type
    return with_operand(model, index, value=np.zeros(type_.dimensions)), f"{named(model, index)}.*has contents"


def _with_value(random: Random, model: Model, change: Callable[[Any], Any]) -> tuple[Model, int]:
    index = random.choice(operands_of(model, Lifetime.CONSTANT))
    return with_operand(model, index, value=change(model.operands[index].value)), index


def value_of_wrong_data_type(random: Random, model: Model) -> Mutated:
    """A constant that holds another data type than it says."""
    changed, index = _with_value(random, model, lambda value: value.astype(np.complex64))
    return changed, f"{named(model, index)} holds complex64.*expected its type"


def value_of_wrong_shape(random: Random, model: Model) -> Mutated:
    """A constant that holds other dimensions than it says."""
    changed, index = _with_value(random, model, lambda value: np.stack([value, value]))
    return changed, f"{named(model, index)} holds .*expected its type"


def value_that_is_no_array(random: Random, model: Model) -> Mutated:
    """A constant that holds a list."""
    changed, index = _with_value(random, model, lambda value: value.tolist())
    return changed, f"{named(model, index)} .*expected a numpy array"


def value_of_another_byte_order(random: Random, model: Model) -> Mutated:
    """A constant in the byte order of other machines."""
    indices = [index for index in operands_of(model, Lifetime.CONSTANT) if _swappable(model.operands[index])]
    if not indices:
        return None
    index = random.choice(indices)
    value: Any = model.operands[index].value
    swapped = value.astype(value.dtype.newbyteorder())
    return with_operand(model, index, value=swapped), f"{named(model, index)} .*byte order"


def _swappable(operand: Operand) -> bool:
    return operand.value is not None and operand.value.dtype.kind in "iuf" and operand.value.dtype.itemsize > 1


OPERAND_MUTATIONS: tuple[Mutation, ...] = (
    duplicate_name,
    name_is_no_text,
    negative_dimension,
    unknown_dimension,
    unknown_data_type,
    layout_of_another_rank,
    constant_without_value,
    value_of_another_lifetime,
    value_of_wrong_data_type,
    value_of_wrong_shape,
    value_that_is_no_array,
    value_of_another_byte_order,
)
"""Every family of this file."""


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


def listed_index_out_of_range(random: Random, model: Model) -> Mutated:
    """An input or output of the model that is no operand."""
    name, index = random.choice(("inputs", "outputs")), random.choice((-1, len(model.operands), None, 0.0))
    listed = (*getattr(model, name), index)
    mutated = replace(model, inputs=listed) if name == "inputs" else replace(model, outputs=listed)
    return mutated, f"model {name[:-1]} {index!r} is no operand"


def input_twice(random: Random, model: Model) -> Mutated:
    """A model input that is listed twice."""
    return replace(model, inputs=(*model.inputs, random.choice(model.inputs))), "model inputs are .*expected none twice"


def input_not_listed(random: Random, model: Model) -> Mutated:
    """An operand that says it is a model input and is not listed."""
    index = random.choice(model.inputs)
    listed = tuple(operand for operand in model.inputs if operand != index)
    return replace(model, inputs=listed), f"{named(model, index)} is model_input, expected it in that list"


def output_not_listed(random: Random, model: Model) -> Mutated:
    """An operand that says it is a model output and is not listed."""
    index = random.choice(operands_of(model, Lifetime.MODEL_OUTPUT))
    listed = tuple(operand for operand in model.outputs if operand != index)
    return replace(model, outputs=listed), f"{named(model, index)} is model_output, expected it in that list"


def lifetime_against_use(random: Random, model: Model) -> Mutated:
    """What is made is said to be given, or what is given to be made."""
    index = random.choice(operands_of(model, Lifetime.MODEL_INPUT, Lifetime.TEMPORARY, Lifetime.MODEL_OUTPUT))
    lifetimes = {Lifetime.MODEL_INPUT, Lifetime.TEMPORARY, Lifetime.MODEL_OUTPUT} - {model.operands[index].lifetime}
    lifetime = random.choice(sorted(lifetimes))
    return with_operand(model, index, lifetime=lifetime), rf"operand {index} {named(model, index)} is"


def output_that_nothing_makes(random: Random, model: Model) -> Mutated:
    """A model output that no operation makes."""
    type_ = OperandType(DataType.FLOAT32, (2,))
    operands = (*model.operands, Operand("never made", type_, Lifetime.MODEL_OUTPUT))
    changed = replace(model, operands=operands, outputs=(*model.outputs, len(model.operands)))
    return changed, "'never made' is model_output, expected an operation that makes it"


def dangling_operand(random: Random, model: Model) -> Mutated:
    """A temporary that no operation makes."""
    operand = Operand("dangling", OperandType(DataType.FLOAT32, (2,)), Lifetime.TEMPORARY)
    return replace(model, operands=(*model.operands, operand)), "'dangling' is temporary, expected an operation"


SIGNATURE_MUTATIONS: tuple[Mutation, ...] = (
    listed_index_out_of_range,
    input_twice,
    input_not_listed,
    output_not_listed,
    lifetime_against_use,
    output_that_nothing_makes,
    dangling_operand,
)
"""Every family of this file."""
