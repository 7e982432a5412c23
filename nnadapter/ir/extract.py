"""A part of a model as a model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Lifetime, Operand


def submodel(model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Model:
    """Return the model that holds just `operations`.

    1. Operands that the operations touch are kept, in their order; constants keep their contents, which are shared.
    2. `inputs` and `outputs` are operands of the whole model, in the order the new model shall have them.
    3. Lifetimes are set anew: an operand in `inputs` is a model input, one in `outputs` a model output.
    """
    given, wanted = frozenset(inputs), frozenset(outputs)
    touched = dict.fromkeys((*inputs, *outputs))
    for index in operations:
        touched.update(dict.fromkeys(model.operations[index].inputs))
        touched.update(dict.fromkeys(model.operations[index].outputs))
    touched.pop(ABSENT, None)
    kept = sorted(touched)
    is_sound = model.is_sound and _is_complete(model, operations, inputs, outputs, kept)
    position = {operand: new for new, operand in enumerate(kept)}
    position[ABSENT] = ABSENT
    part = Model(
        tuple(_placed(model.operands[index], index in given, index in wanted) for index in kept),
        tuple(_moved(model.operations[index], position) for index in operations),
        tuple(position[index] for index in inputs),
        tuple(position[index] for index in outputs),
    )
    return part.found_sound() if is_sound else part


def _is_complete(
    model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int], kept: Sequence[int]
) -> bool:
    """Whether such a part of a sound model is sound: operations in order, operands given, made or constant."""
    given = frozenset(inputs)
    made = {operand for index in operations for operand in model.operations[index].outputs}
    constants = {index for index in kept if model.operands[index].lifetime is Lifetime.CONSTANT}
    return (
        all(one < other for one, other in pairwise((-1, *operations)))
        and len(given) == len(inputs)
        and given.isdisjoint(made | constants)
        and given.isdisjoint((ABSENT,))
        and ABSENT not in outputs
        and len(given) + len(made) + len(constants) == len(kept)
    )


def _placed(operand: Operand, given: bool, wanted: bool) -> Operand:
    if operand.lifetime is Lifetime.CONSTANT:
        return operand
    lifetime = Lifetime.MODEL_INPUT if given else Lifetime.MODEL_OUTPUT if wanted else Lifetime.TEMPORARY
    return operand if lifetime is operand.lifetime else Operand(operand.name, operand.type, lifetime)


def _moved(operation: Operation, position: dict[int, int]) -> Operation:
    return Operation(
        operation.type,
        tuple(position[index] for index in operation.inputs),
        tuple(position[index] for index in operation.outputs),
        operation.attributes,
        operation.origins,
    )
