"""A part of a model as a model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import Lifetime, Operand


def submodel(model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Model:
    """Return the model that holds just `operations`.

    1. Operands that the operations touch are kept, in their order; constants keep their contents, which are shared.
    2. `inputs` and `outputs` are operands of the whole model, in the order the new model shall have them.
    3. Lifetimes are set anew: an operand in `inputs` is a model input, one in `outputs` a model output.
    4. Of a sound model, all of it is the model itself.
    """
    input_set, output_set = frozenset(inputs), frozenset(outputs)
    chosen = [model.operations[index] for index in operations]
    touched = {*inputs, *outputs}
    for operation in chosen:
        touched.update(operation.inputs)
        touched.update(operation.outputs)
    touched.discard(ABSENT)
    operands = sorted(touched)
    is_sound = model.is_sound and _is_complete(model, operations, inputs, outputs, operands)
    if is_sound and _is_whole(model, operations, inputs, outputs, operands):
        return model
    position = {operand: number for number, operand in enumerate(operands)}
    position[ABSENT] = ABSENT
    place = position.__getitem__
    part = Model(
        tuple(_placed(model.operands[index], index in input_set, index in output_set) for index in operands),
        tuple(op.renumbered(place) for op in chosen),
        tuple(map(place, inputs)),
        tuple(map(place, outputs)),
    )
    if not model.is_open:
        vars(part)["is_open"] = False  # nor does a part of it leave sizes open; nobody has to look
    return part.found_sound() if is_sound else part


def _is_whole(
    model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int], operands: Sequence[int]
) -> bool:
    """Whether a part that is sound lacks nothing; what varies in a part is not said."""
    return (
        len(operations) == len(model.operations)
        and len(operands) == len(model.operands)
        and tuple(inputs) == model.inputs
        and tuple(outputs) == model.outputs
        and not model.varying
    )


def _is_complete(
    model: Model, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int], operands: Sequence[int]
) -> bool:
    """Whether such a part of a sound model is sound: operations in order, operands given, made or constant."""
    input_set = frozenset(inputs)
    result_set = set(chain.from_iterable(model.operations[index].outputs for index in operations))
    constant = Lifetime.CONSTANT
    constants = {index for index in operands if model.operands[index].lifetime is constant}
    return (
        all(previous < other for previous, other in pairwise((-1, *operations)))
        and len(input_set) == len(inputs)
        and input_set.isdisjoint(result_set | constants)
        and input_set.isdisjoint((ABSENT,))
        and ABSENT not in outputs
        and len(input_set) + len(result_set) + len(constants) == len(operands)
    )


def _placed(operand: Operand, is_input: bool, is_output: bool) -> Operand:
    if operand.lifetime is Lifetime.CONSTANT:
        return operand
    lifetime = Lifetime.MODEL_INPUT if is_input else Lifetime.MODEL_OUTPUT if is_output else Lifetime.TEMPORARY
    return operand if lifetime is operand.lifetime else Operand(operand.name, operand.type, lifetime)
