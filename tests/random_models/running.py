"""Ways to run a model: on fake_npu, and cut into parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from nnadapter.drivers import Context
from nnadapter.ir import ABSENT, Array, Lifetime, Model, submodel, verify
from nnadapter.testing.random_models import outputs_of


def run(context: Context, model: Model, feeds: Sequence[Array]) -> Sequence[Array]:
    """Admit, compile and compute a fully supported model."""
    assert context.admit(model).verdict
    return context.compile(model).create_execution().compute(feeds)


def reordered(random: Random, model: Model) -> Model:
    """Return the model with its operations in another valid order."""
    waiting = {
        position: {model.producer[operand] for operand in operation.inputs if operand in model.producer}
        for position, operation in enumerate(model.operations)
    }
    order: list[int] = []
    while waiting:
        position = random.choice([each for each, needed in waiting.items() if needed <= set(order)])
        order.append(position)
        del waiting[position]
    return replace(model, operations=tuple(model.operations[position] for position in order))


def in_parts(random: Random, context: Context, model: Model, feeds: Sequence[Array]) -> list[Array]:
    """Cut the model at random and run each part on the device, or by the oracle if the device refuses an operation."""
    values = {index: operand.value for index, operand in enumerate(model.operands) if operand.value is not None}
    values.update(zip(model.inputs, feeds, strict=True))
    count = len(model.operations)
    cuts = sorted(random.randint(0, count) for _ in range(random.randint(1, 3)))
    for begin, end in zip([0, *cuts], [*cuts, count], strict=True):
        inputs, outputs = _border(model, range(begin, end))
        part = submodel(model, range(begin, end), inputs, outputs)
        verify(part)
        given = [values[operand] for operand in inputs]
        results = run(context, part, given) if all(context.supported(part)) else outputs_of(part, given)
        values.update(zip(outputs, results, strict=True))
    return [values[operand] for operand in model.outputs]


def _border(model: Model, operations: range) -> tuple[list[int], list[int]]:
    """Return the inputs of a part, and the outputs that other parts need."""
    inside = [model.operations[position] for position in operations]
    made = {operand for operation in inside for operand in operation.outputs}
    read = {operand for operation in inside for operand in operation.inputs if operand != ABSENT}
    given = sorted(operand for operand in read - made if model.operands[operand].lifetime is not Lifetime.CONSTANT)
    wanted = [
        operand
        for operand in sorted(made)
        if operand in model.outputs or any(reader not in operations for reader in model.consumers.get(operand, ()))
    ]
    return given, wanted
