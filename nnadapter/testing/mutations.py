"""Mutations of valid models into invalid ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from re import escape
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.ir import (
    ABSENT,
    AttributeKind,
    DataType,
    Layout,
    Lifetime,
    Model,
    Operand,
    OperandType,
    Operation,
    Quantization,
    schema_of,
)
from nnadapter.ir.schema import Attribute, OperationSchema
from nnadapter.records import replace

Mutated = tuple[Model, str] | None
"""Invalid model and pattern of its error message; None if the mutation is impossible."""
Mutation = Callable[[Random, Model], Mutated]
"""Function that makes a model invalid; its name describes the defect."""


def with_operand(model: Model, index: int, **changes: Any) -> Model:
    """Return the model with changes to one operand."""
    operands = list(model.operands)
    operands[index] = replace(operands[index], **changes)
    return replace(model, operands=tuple(operands))


def with_type(model: Model, index: int, **changes: Any) -> Model:
    """Return the model with changes to an operand's type."""
    return with_operand(model, index, type=replace(model.operands[index].type, **changes))


def with_operation(model: Model, position: int, **changes: Any) -> Model:
    """Return the model with changes to one operation."""
    operations = list(model.operations)
    operations[position] = replace(operations[position], **changes)
    return replace(model, operations=tuple(operations))


def operands_of(model: Model, *lifetimes: Lifetime) -> list[int]:
    """Return indices of operands with these lifetimes; by default, of all operands."""
    return [index for index, operand in enumerate(model.operands) if operand.lifetime in (lifetimes or (*Lifetime,))]


def results_of(model: Model) -> list[int]:
    """Return the operands that operations produce."""
    return [operand for operation in model.operations for operand in operation.outputs]


def named(model: Model, index: int) -> str:
    """Return a pattern that matches an operand's name."""
    return escape(repr(model.operands[index].name))


def positions(model: Model, fits: Callable[[Operation, OperationSchema], bool]) -> list[int]:
    """Return the positions of operations for which `fits` is true."""
    return [index for index, operation in enumerate(model.operations) if fits(operation, schema_of(operation.type))]


def at(model: Model, position: int) -> str:
    """Return a pattern that matches messages about an operation."""
    return f"operation {position}, .*{model.operations[position].type}: "


def with_input(model: Model, type_: OperandType) -> tuple[Model, int]:
    """Add an input; return model and operand."""
    operands = (*model.operands, Operand("another", type_, Lifetime.MODEL_INPUT))
    return replace(model, operands=operands, inputs=(*model.inputs, len(model.operands))), len(model.operands)


def duplicate_name(random: Random, model: Model) -> Mutated:
    """Use an operand's name for a second operand."""
    first, other = random.sample(range(len(model.operands)), 2)
    name = model.operands[first].name
    return with_operand(model, other, name=name), f"both called {escape(repr(name))}"


def name_is_no_text(random: Random, model: Model) -> Mutated:
    """Replace an operand's name by a non-string."""
    index = random.randrange(len(model.operands))
    return with_operand(model, index, name=random.choice((None, 7, b"x"))), f"operand {index} .*expected a text"


def negative_dimension(random: Random, model: Model) -> Mutated:
    """Set a negative dimension."""
    index = random.randrange(len(model.operands))
    return with_type(model, index, dimensions=(2, -1)), f"{named(model, index)}.*expected no dimension below 0"


def unknown_dimension(random: Random, model: Model) -> Mutated:
    """Set a dimension to a non-integer."""
    index = random.randrange(len(model.operands))
    size = random.choice((None, "N", 2.0))
    return with_type(model, index, dimensions=(2, size)), f"{named(model, index)}.*expected a tuple of integers"


def unknown_data_type(random: Random, model: Model) -> Mutated:
    """Set an operand's data type to an invalid one."""
    index = random.randrange(len(model.operands))
    dtype = random.choice(("float33", None, np.float32))
    return with_type(model, index, dtype=dtype), f"{named(model, index)}.*expected a DataType"


def layout_of_another_rank(random: Random, model: Model) -> Mutated:
    """Set the layout NHWC for an operand of a rank other than 4."""
    indices = [index for index, operand in enumerate(model.operands) if operand.type.rank != 4]
    index = random.choice(indices)
    return with_type(model, index, layout=Layout.NHWC), f"{named(model, index)}.*expected rank 4"


def constant_without_value(random: Random, model: Model) -> Mutated:
    """Remove a constant's contents."""
    index = random.choice(operands_of(model, Lifetime.CONSTANT))
    return with_operand(model, index, value=None), f"{named(model, index)} is constant and has no contents"


def value_of_another_lifetime(random: Random, model: Model) -> Mutated:
    """Add constant contents to an operand that is not a constant."""
    index = random.choice(operands_of(model, Lifetime.MODEL_INPUT, Lifetime.MODEL_OUTPUT, Lifetime.TEMPORARY))
    type_ = model.operands[index].type
    return with_operand(model, index, value=np.zeros(type_.dimensions)), f"{named(model, index)}.*has contents"


def _with_value(random: Random, model: Model, change: Callable[[Any], Any]) -> tuple[Model, int]:
    index = random.choice(operands_of(model, Lifetime.CONSTANT))
    return with_operand(model, index, value=change(model.operands[index].value)), index


def value_of_wrong_data_type(random: Random, model: Model) -> Mutated:
    """Change a constant's data type."""
    changed, index = _with_value(random, model, lambda value: value.astype(np.complex64))
    return changed, f"{named(model, index)} holds complex64.*expected its type"


def value_of_wrong_shape(random: Random, model: Model) -> Mutated:
    """Change a constant's shape."""
    changed, index = _with_value(random, model, lambda value: np.stack([value, value]))
    return changed, f"{named(model, index)} holds .*expected its type"


def value_that_is_no_array(random: Random, model: Model) -> Mutated:
    """Replace a constant's array by a list."""
    changed, index = _with_value(random, model, lambda value: value.tolist())
    return changed, f"{named(model, index)} .*expected a numpy array"


def value_of_another_byte_order(random: Random, model: Model) -> Mutated:
    """Swap a constant's byte order."""
    indices = [index for index in operands_of(model, Lifetime.CONSTANT) if _swappable(model.operands[index])]
    if not indices:
        return None
    index = random.choice(indices)
    value: Any = model.operands[index].value
    swapped = value.astype(value.dtype.newbyteorder())
    return with_operand(model, index, value=swapped), f"{named(model, index)} .*byte order"


def _swappable(operand: Operand) -> bool:
    return operand.value is not None and operand.value.dtype.kind in "iuf" and operand.value.dtype.itemsize > 1


def _quantized(model: Model, dtype: DataType, dimensions: tuple[int, ...], **quantization: Any) -> Model:
    type_ = OperandType(dtype, dimensions, quantization=Quantization(**quantization))
    operand = Operand("quantized", type_, Lifetime.MODEL_INPUT)
    return replace(model, operands=(*model.operands, operand), inputs=(*model.inputs, len(model.operands)))


def quantized_real(random: Random, model: Model) -> Mutated:
    """Quantize an input that is not an integer."""
    dtype = random.choice((DataType.FLOAT32, DataType.FLOAT16, DataType.BOOL))
    return _quantized(model, dtype, (2,), scale=(0.5,), zero_point=(0,)), "'quantized'.*expected an integer data type"


def _integer(random: Random) -> DataType:
    return random.choice((DataType.INT8, DataType.UINT8, DataType.INT16, DataType.INT32, DataType.INT4))


def wrong_number_of_scales(random: Random, model: Model) -> Mutated:
    """Quantize with a wrong number of scales."""
    axis, wrong = random.choice(((None, 0), (None, 2), (0, 1), (0, 4)))
    changed = _quantized(
        model, _integer(random), (3,), scale=(0.5,) * wrong, zero_point=(0,) * (3 if axis == 0 else 1), axis=axis
    )
    return changed, f"'quantized' has {wrong} scales.*expected"


def wrong_number_of_zero_points(random: Random, model: Model) -> Mutated:
    """Quantize with a wrong number of zero points."""
    wrong = random.choice((0, 2, 3))
    changed = _quantized(model, _integer(random), (3,), scale=(0.5,), zero_point=(0,) * wrong)
    return changed, f"'quantized' has 1 scales and {wrong} zero points, expected 1"


def unsound_scale(random: Random, model: Model) -> Mutated:
    """Quantize with a scale out of range."""
    scale = random.choice((0.0, -0.5, float("nan"), float("inf"), float("-inf")))
    changed = _quantized(model, _integer(random), (2,), scale=(0.5, scale), zero_point=(0, 0), axis=0)
    return changed, "'quantized' has a scale that is not positive and finite"


def scale_that_is_no_number(random: Random, model: Model) -> Mutated:
    """Quantize with a scale that is not a number."""
    scale = random.choice(("0.5", None, (0.5,)))
    changed = _quantized(model, _integer(random), (2,), scale=(scale,), zero_point=(0,))
    return changed, "'quantized' has a scale that is not a number"


def zero_point_out_of_range(random: Random, model: Model) -> Mutated:
    """Quantize with a zero point out of range."""
    dtype, point = random.choice(((DataType.INT8, 128), (DataType.UINT8, -1), (DataType.UINT4, 16)))
    changed = _quantized(model, dtype, (2,), scale=(0.5,), zero_point=(point,))
    return changed, "'quantized' has a zero point outside its data type, expected"


def zero_point_that_is_no_integer(random: Random, model: Model) -> Mutated:
    """Quantize with a zero point that is not an integer."""
    changed = _quantized(model, _integer(random), (2,), scale=(0.5,), zero_point=(random.choice((0.5, None, "0")),))
    return changed, "'quantized' has a zero point that is not an integer"


def quantized_along_no_axis(random: Random, model: Model) -> Mutated:
    """Quantize along an axis that does not exist."""
    axis = random.choice((-1, 2, 7))
    changed = _quantized(model, _integer(random), (2, 1), scale=(0.5,), zero_point=(0,), axis=axis)
    return changed, f"'quantized' is quantized along axis {axis}, expected one of 0 to 1"


def listed_index_out_of_range(random: Random, model: Model) -> Mutated:
    """List a nonexistent operand as a model input or output."""
    name, index = random.choice(("inputs", "outputs")), random.choice((-1, len(model.operands), None, 0.0))
    listed = (*getattr(model, name), index)
    mutated = replace(model, inputs=listed) if name == "inputs" else replace(model, outputs=listed)
    return mutated, f"model {name[:-1]} {index!r} is not an operand"


def input_twice(random: Random, model: Model) -> Mutated:
    """List a model input twice."""
    return replace(
        model, inputs=(*model.inputs, random.choice(model.inputs))
    ), "model inputs are .*expected no duplicates"


def input_not_listed(random: Random, model: Model) -> Mutated:
    """Omit an operand from the list of model inputs."""
    index = random.choice(model.inputs)
    listed = tuple(operand for operand in model.inputs if operand != index)
    return replace(model, inputs=listed), f"{named(model, index)} has the lifetime model_input, expected it in the list"


def output_not_listed(random: Random, model: Model) -> Mutated:
    """Omit an operand from the list of model outputs."""
    index = random.choice(operands_of(model, Lifetime.MODEL_OUTPUT))
    listed = tuple(operand for operand in model.outputs if operand != index)
    return replace(
        model, outputs=listed
    ), f"{named(model, index)} has the lifetime model_output, expected it in the list"


def lifetime_against_use(random: Random, model: Model) -> Mutated:
    """Replace the lifetime of an input, output or temporary by another of these."""
    index = random.choice(operands_of(model, Lifetime.MODEL_INPUT, Lifetime.TEMPORARY, Lifetime.MODEL_OUTPUT))
    lifetimes = {Lifetime.MODEL_INPUT, Lifetime.TEMPORARY, Lifetime.MODEL_OUTPUT} - {model.operands[index].lifetime}
    lifetime = random.choice(sorted(lifetimes))
    return with_operand(model, index, lifetime=lifetime), rf"operand {index} {named(model, index)} (is|has)"


def output_that_nothing_makes(random: Random, model: Model) -> Mutated:
    """Add a model output that no operation produces."""
    type_ = OperandType(DataType.FLOAT32, (2,))
    operands = (*model.operands, Operand("never made", type_, Lifetime.MODEL_OUTPUT))
    changed = replace(model, operands=operands, outputs=(*model.outputs, len(model.operands)))
    return changed, "'never made' is model_output, expected an operation that produces it"


def dangling_operand(random: Random, model: Model) -> Mutated:
    """Add a temporary operand that no operation produces."""
    operand = Operand("dangling", OperandType(DataType.FLOAT32, (2,)), Lifetime.TEMPORARY)
    return replace(model, operands=(*model.operands, operand)), "'dangling' is temporary, expected an operation"


def _reading(random: Random, model: Model) -> tuple[int, Operation]:
    position = random.choice(positions(model, lambda operation, schema: bool(operation.inputs)))
    return position, model.operations[position]


def unknown_operation(random: Random, model: Model) -> Mutated:
    """Set an unknown operation type."""
    position = random.randrange(len(model.operations))
    type_ = random.choice((model.operations[position].type + "S_", "", model.operations[position].type.lower()))
    return with_operation(model, position, type=type_), f"operation {position}, .*unknown operation {type_!r}; "


def no_operation_type(random: Random, model: Model) -> Mutated:
    """Remove an operation's type."""
    position = random.randrange(len(model.operations))
    return with_operation(model, position, type=None), f"operation {position} is of type None, expected"


def reads_beyond_the_model(random: Random, model: Model) -> Mutated:
    """Read an operand index that does not exist."""
    position, operation = _reading(random, model)
    index = random.choice((len(model.operands), -2, 10**6))
    changed = with_operation(model, position, inputs=(index, *operation.inputs[1:]))
    return changed, f"{at(model, position)}reads operand {index}, expected one defined earlier"


def reads_no_number(random: Random, model: Model) -> Mutated:
    """Make an operation read an operand by an index that is not an integer."""
    position, operation = _reading(random, model)
    changed = with_operation(model, position, inputs=(random.choice((None, "x")), *operation.inputs[1:]))
    return changed, f"{at(model, position)}reads operand .*expected an integer"


def reads_its_own_result(random: Random, model: Model) -> Mutated:
    """Read an operation's own result."""
    position, operation = _reading(random, model)
    changed = with_operation(model, position, inputs=(operation.outputs[0], *operation.inputs[1:]))
    return changed, f"{at(model, position)}reads operand {operation.outputs[0]}, expected one defined earlier"


def cycle(random: Random, model: Model) -> Mutated:
    """Make two operations depend on each other."""
    pairs = [(model.producer[operand], reader) for reader, operand in _read_of_made(model)]
    if not pairs:
        return None
    first, second = random.choice(pairs)
    inputs = (model.operations[second].outputs[0], *model.operations[first].inputs[1:])
    return with_operation(model, first, inputs=inputs), f"{at(model, first)}reads operand {inputs[0]}"


def _read_of_made(model: Model) -> Iterator[tuple[int, int]]:
    for position, operation in enumerate(model.operations):
        yield from ((position, operand) for operand in operation.inputs if operand in model.producer)


def operation_before_its_input(random: Random, model: Model) -> Mutated:
    """Move an operation before its input's producer."""
    reads = list(_read_of_made(model))
    if not reads:
        return None
    reader, operand = random.choice(reads)
    order = list(model.operations)
    order.insert(model.producer[operand], order.pop(reader))
    return replace(model, operations=tuple(order)), ": reads operand .*expected one defined earlier"


def required_input_absent(random: Random, model: Model) -> Mutated:
    """Omit a required input of an operation."""
    position, operation = _reading(random, model)
    roles = schema_of(operation.type).inputs
    place = random.choice([index for index, role in enumerate(roles) if not role.optional])
    inputs = (*operation.inputs[:place], ABSENT, *operation.inputs[place + 1 :])
    changed = with_operation(model, position, inputs=inputs)
    return changed, f"{at(model, position)}input {roles[place].name!r} is absent, expected an operand"


def too_few_inputs(random: Random, model: Model) -> Mutated:
    """Remove all inputs of an operation."""
    position, _ = _reading(random, model)
    return with_operation(model, position, inputs=()), f"{at(model, position)}0 inputs, expected "


def too_many_inputs(random: Random, model: Model) -> Mutated:
    """Add more inputs than an operation's schema allows."""
    position = random.choice(positions(model, lambda operation, schema: not any(r.variadic for r in schema.inputs)))
    operation = model.operations[position]
    count = len(schema_of(operation.type).inputs) + random.choice((1, 2))
    inputs = (*operation.inputs, *[operands_of(model, Lifetime.MODEL_INPUT)[0]] * count)[:count]
    return with_operation(model, position, inputs=inputs), f"{at(model, position)}{count} inputs, expected "


def input_of_wrong_data_type(random: Random, model: Model) -> Mutated:
    """Make an operation read an operand of an unsupported data type."""
    position = random.choice(positions(model, lambda operation, schema: len(schema.inputs[0].dtypes) < len(DataType)))
    wrong = random.choice(sorted(frozenset(DataType) - schema_of(model.operations[position].type).inputs[0].dtypes))
    changed, index = with_input(
        model, OperandType(wrong, model.operands[model.operations[position].inputs[0]].type.dimensions)
    )
    return _first_replaced(changed, position, index), f"{at(model, position)}input .* is {wrong.value}, expected one of"


def inputs_of_different_data_types(random: Random, model: Model) -> Mutated:
    """Give an operation inputs of unequal data types although its schema requires equal ones."""
    candidates = positions(model, lambda operation, schema: len(operation.inputs) > 1 and _paired(schema))
    position = random.choice(candidates)
    operation = model.operations[position]
    role = schema_of(operation.type).inputs[1]
    first = model.operands[operation.inputs[0]].type.dtype
    other_dtypes = sorted(role.dtypes - {first})
    changed, index = with_input(model, OperandType(random.choice(other_dtypes), (1,)))
    inputs = (operation.inputs[0], index, *operation.inputs[2:])
    changed = with_operation(changed, position, inputs=inputs)
    return changed, f"{at(model, position)}input {role.name!r} is .*expected {first.value} as {role.same_dtype_as!r}"


def _paired(schema: OperationSchema) -> bool:
    return (
        len(schema.inputs) > 1
        and schema.inputs[1].same_dtype_as == schema.inputs[0].name
        and len(schema.inputs[1].dtypes) > 1
    )


def input_of_wrong_rank(random: Random, model: Model) -> Mutated:
    """Make an operation read an operand of an unsupported rank."""
    position = random.choice(positions(model, lambda operation, schema: schema.ranks[0] > 0))
    operation = model.operations[position]
    smallest, largest = schema_of(operation.type).ranks
    rank = random.choice([invalid_rank for invalid_rank in (0, smallest - 1, largest + 1) if invalid_rank < 64])
    changed, index = with_input(model, OperandType(model.operands[operation.inputs[0]].type.dtype, (1,) * rank))
    return _first_replaced(changed, position, index), f"{at(model, position)}input .* has rank {rank}, expected"


def _first_replaced(model: Model, position: int, operand: int) -> Model:
    return with_operation(model, position, inputs=(operand, *model.operations[position].inputs[1:]))


def made_twice(random: Random, model: Model) -> Mutated:
    """Produce an operand by two operations."""
    first, other = sorted(random.sample(range(len(model.operations)), 2))
    index = model.operations[first].outputs[0]
    changed = with_operation(model, other, outputs=(index, *model.operations[other].outputs[1:]))
    return changed, f"operation {other}, .*"


def makes_what_is_given(random: Random, model: Model) -> Mutated:
    """Make an operation produce a model input or constant."""
    position = random.choice(positions(model, lambda operation, schema: _is_plain(model, operation.outputs[0])))
    index = random.choice(operands_of(model, Lifetime.MODEL_INPUT, Lifetime.CONSTANT))
    outputs = (index, *model.operations[position].outputs[1:])
    return with_operation(
        model, position, outputs=outputs
    ), f"{at(model, position)}produces operand {index} {named(model, index)}"


def makes_one_operand_twice(random: Random, model: Model) -> Mutated:
    """List an operand twice as output of one operation."""
    candidates = positions(model, lambda operation, schema: len(operation.outputs) > 1)
    position = random.choice(candidates)
    outputs = model.operations[position].outputs
    changed = with_operation(model, position, outputs=(outputs[0],) * len(outputs))
    return changed, f"{at(model, position)}outputs are .*expected no duplicates"


def makes_too_few(random: Random, model: Model) -> Mutated:
    """Remove all outputs of an operation."""
    position = random.randrange(len(model.operations))
    return with_operation(model, position, outputs=()), f"{at(model, position)}0 outputs, expected"


def makes_too_many(random: Random, model: Model) -> Mutated:
    """Add more outputs than an operation's schema allows."""
    position = random.randrange(len(model.operations))
    outputs = (*model.operations[position].outputs, len(model.operands))
    operand = Operand("too many", OperandType(DataType.FLOAT32, (2,)), Lifetime.TEMPORARY)
    changed = with_operation(replace(model, operands=(*model.operands, operand)), position, outputs=outputs)
    return changed, f"{at(model, position)}{len(outputs)} outputs, expected {len(outputs) - 1}"


def makes_beyond_the_model(random: Random, model: Model) -> Mutated:
    """Make an operation produce a nonexistent operand."""
    position = random.randrange(len(model.operations))
    index = random.choice((len(model.operands), -1, -2))
    outputs = (index, *model.operations[position].outputs[1:])
    return with_operation(
        model, position, outputs=outputs
    ), f"{at(model, position)}produces operand {index}, expected 0 to"


def _is_plain(model: Model, index: int) -> bool:
    return model.operands[index].type.quantization is None


def _spoilt_result(random: Random, model: Model, **changes: Any) -> Mutated:
    index = random.choice([operand for operand in results_of(model) if _is_plain(model, operand)])
    if any(getattr(model.operands[index].type, name) == value for name, value in changes.items()):
        return None
    position = model.producer[index]
    return with_type(model, index, **changes), f"{at(model, position)}output {named(model, index)} is .*expected "


def result_of_wrong_shape(random: Random, model: Model) -> Mutated:
    """Change the shape of an operation's result."""
    index = random.choice(results_of(model))
    dimensions = model.operands[index].type.dimensions
    wrong = random.choice(((*dimensions, 1), tuple(size + 1 for size in dimensions) or (2,), (*dimensions[:-1], 97)))
    changed = with_type(model, index, dimensions=wrong, layout=Layout.NCHW)
    return changed, f"{at(model, model.producer[index])}output {named(model, index)} is .*expected "


def result_of_wrong_data_type(random: Random, model: Model) -> Mutated:
    """Change the data type of an operation's result."""
    return _spoilt_result(random, model, dtype=random.choice((DataType.UINT64, DataType.FLOAT64, DataType.INT4)))


def result_of_wrong_layout(random: Random, model: Model) -> Mutated:
    """Change the layout of an operation's result."""
    indices = [index for index in results_of(model) if model.operands[index].type.rank == 4]
    index = random.choice(indices)
    other = Layout.NCHW if model.operands[index].type.layout is Layout.NHWC else Layout.NHWC
    changed = with_type(model, index, layout=other)
    return changed, f"{at(model, model.producer[index])}output {named(model, index)} is .*expected "


def operation_left_out(random: Random, model: Model) -> Mutated:
    """Remove an operation whose results are needed."""
    position = random.randrange(len(model.operations))
    operations = (*model.operations[:position], *model.operations[position + 1 :])
    return replace(
        model, operations=operations
    ), "reads operand .*expected one defined earlier|expected an operation that produces"


def _attribute(random: Random, model: Model, fits: Callable[[Attribute], bool]) -> tuple[int, str]:
    candidates = [
        (position, attribute.name)
        for position, operation in enumerate(model.operations)
        for attribute in schema_of(operation.type).attributes
        if fits(attribute)
    ]
    return random.choice(candidates)


def _set(model: Model, position: int, name: str, value: Any) -> Model:
    return with_operation(model, position, attributes={**model.operations[position].attributes, name: value})


def unknown_attribute(random: Random, model: Model) -> Mutated:
    """Add an unknown attribute."""
    position = random.randrange(len(model.operations))
    changed = _set(model, position, "axsi", 1)
    return changed, f"{at(model, position)}unknown attribute 'axsi'; "


def missing_attribute(random: Random, model: Model) -> Mutated:
    """Remove an attribute of an operation."""
    position, name = _attribute(random, model, lambda attribute: True)
    attributes = {key: value for key, value in model.operations[position].attributes.items() if key != name}
    changed = with_operation(model, position, attributes=attributes)
    return changed, rf"{at(model, position)}attributes \['{name}'\] are missing, expected"


_WRONG: Mapping[AttributeKind, tuple[Any, ...]] = MappingProxyType(
    {
        AttributeKind.BOOL: (1, "true", None),
        AttributeKind.INT: (True, 1.5, "1", (1,)),
        AttributeKind.FLOAT: (True, "0.5", None, (0.5,)),
        AttributeKind.STRING: (3, None, b"none", ("none",)),
        AttributeKind.INTS: (1, (1.5,), ("1",), (True,), None),
        AttributeKind.FLOATS: (0.5, ("a",), None),
    }
)


def attribute_of_wrong_kind(random: Random, model: Model) -> Mutated:
    """Replace an attribute by a value of another kind."""
    position, name = _attribute(random, model, lambda attribute: True)
    kind = {
        attribute_schema.name: attribute_schema.kind
        for attribute_schema in schema_of(model.operations[position].type).attributes
    }[name]
    changed = _set(model, position, name, random.choice(_WRONG[kind]))
    return changed, f"{at(model, position)}attribute {name!r} is .*expected a value of kind {kind.value}"


def attribute_beyond_its_choices(random: Random, model: Model) -> Mutated:
    """Set an attribute to a value outside its choices."""
    position, name = _attribute(random, model, lambda attribute: bool(attribute.choices))
    return _set(
        model, position, name, "no choice"
    ), f"{at(model, position)}attribute {name!r} is 'no choice', expected one of"


def attribute_of_wrong_length(random: Random, model: Model) -> Mutated:
    """Change an attribute's length."""
    position, name = _attribute(random, model, lambda attribute: attribute.length is not None)
    attribute_value: Any = model.operations[position].attributes[name]
    wrong = random.choice((attribute_value[1:], (*attribute_value, 1), ()))
    return _set(
        model, position, name, wrong
    ), f"{at(model, position)}attribute {name!r} is .*expected {len(attribute_value)} values"


def axis_out_of_range(random: Random, model: Model) -> Mutated:
    """Set an axis that does not exist."""
    position, name = _attribute(
        random, model, lambda attribute: (attribute.name, attribute.kind) == ("axis", AttributeKind.INT)
    )
    return _set(model, position, name, random.choice((-1, 64))), f"{at(model, position)}.*axis .*expected"


def fuse_parameters_that_do_not_fit(random: Random, model: Model) -> Mutated:
    """Add a surplus number to the attribute `fuse_parameters`."""
    position, name = _attribute(random, model, lambda attribute: attribute.name == "fuse_parameters")
    parameters: Any = model.operations[position].attributes[name]
    return _set(model, position, name, (*parameters, 1.0)), f"{at(model, position)}fuse_parameters has .*expected"


MUTATIONS: Mapping[str, Mutation] = MappingProxyType(
    {
        family.__name__: family
        for family in (
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
            quantized_real,
            wrong_number_of_scales,
            wrong_number_of_zero_points,
            unsound_scale,
            scale_that_is_no_number,
            zero_point_out_of_range,
            zero_point_that_is_no_integer,
            quantized_along_no_axis,
            listed_index_out_of_range,
            input_twice,
            input_not_listed,
            output_not_listed,
            lifetime_against_use,
            output_that_nothing_makes,
            dangling_operand,
            unknown_operation,
            no_operation_type,
            reads_beyond_the_model,
            reads_no_number,
            reads_its_own_result,
            cycle,
            operation_before_its_input,
            required_input_absent,
            too_few_inputs,
            too_many_inputs,
            input_of_wrong_data_type,
            inputs_of_different_data_types,
            input_of_wrong_rank,
            made_twice,
            makes_what_is_given,
            makes_one_operand_twice,
            makes_too_few,
            makes_too_many,
            makes_beyond_the_model,
            result_of_wrong_shape,
            result_of_wrong_data_type,
            result_of_wrong_layout,
            operation_left_out,
            unknown_attribute,
            missing_attribute,
            attribute_of_wrong_kind,
            attribute_beyond_its_choices,
            attribute_of_wrong_length,
            axis_out_of_range,
            fuse_parameters_that_do_not_fit,
        )
    }
)
