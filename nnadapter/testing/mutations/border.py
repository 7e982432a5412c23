"""Families of invalid models: of what goes in and out, and of lifetimes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from nnadapter.ir import (
    DataType,
    Lifetime,
    Model,
    Operand,
    OperandType,
)
from nnadapter.testing.mutations.changes import (
    Mutated,
    Mutation,
    named,
    operands_of,
    with_operand,
)


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
