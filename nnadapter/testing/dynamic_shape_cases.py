"""Cases for devices with dynamic shapes: models compiled once and run at several sizes.

One size of a static random model becomes symbolic in all inputs, and the schema's rules infer the others. Their guards
limit the sizes of the model, which the definition computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.drivers.capability import DynamicShapes
from nnadapter.drivers.isolation.isolated_device import IsolatedContext, number_of
from nnadapter.errors import InvalidModelError
from nnadapter.ir import ABSENT, Array, AttributeValue, Model, Operand, OperandType, Operation, SymbolicNumber
from nnadapter.ir.structure import SymbolicModel
from nnadapter.ir.symbolic_numbers import SymbolicTrace, size_hint
from nnadapter.ir.verification import inferred
from nnadapter.planning.bounds import beyond_bounds
from nnadapter.records import dataclass, replace
from nnadapter.testing.ir_cases import of_many, of_one_operation, operation_types
from nnadapter.testing.onnx_cases import NODES, DynamicOnnxModel, ops_taken, with_dynamic_dimension
from nnadapter.testing.random_models.maker import RandomCase, evaluate, expect_tame
from nnadapter.testing.random_models.recipes import FROM_SCHEMA, RECIPES
from nnadapter.testing.subjects import (
    Bench,
    Case,
    CaseFailure,
    FailedOutcome,
    Outcome,
    OutcomeKind,
    PassedOutcome,
    SkippedOutcome,
    blamed,
    of_ir,
)

Dimensions = tuple[Any, ...]


@dataclass(frozen=True)
class DynamicCase:
    """Model with one dynamic size, and inputs for one value of it."""

    model: Model
    trace: SymbolicTrace
    size: int
    feeds: tuple[Array, ...]

    def at(self, size: int) -> RandomCase | None:
        """Return the model and inputs at another size; None if guards fail."""
        traced_values = self.trace.replay([size])
        if traced_values is None:
            return None
        pairs = zip(self.model.inputs, self.feeds, strict=True)
        feeds = tuple(_resized(feed, self.model.type_at(operand).dimensions, size) for operand, feed in pairs)
        return RandomCase(self._traced.specialize(traced_values), feeds)

    @cached_property
    def _traced(self) -> SymbolicModel:
        return SymbolicModel(self.model)


def opened(random: Random, case: RandomCase) -> Iterator[DynamicCase]:
    """Yield the model with each size made dynamic, in random order."""
    model = case.model
    sizes = sorted({size for operand in model.inputs for size in model.type_at(operand).dimensions if size})
    for size in random.sample(sizes, len(sizes)):
        trace = SymbolicTrace()
        try:
            yield DynamicCase(_with_open_size(model, size, trace.variable(size)), trace, size, case.feeds)
        except (ArithmeticError, InvalidModelError):  # sizes do not fit together any more
            continue


def _with_open_size(model: Model, size: int, variable: SymbolicNumber) -> Model:
    types = [operand.type for operand in model.operands]
    for operand in model.inputs:
        types[operand] = _with(types[operand], _replaced(types[operand].dimensions, size, variable))
    operations = []
    for operation in model.operations:
        read = [None if operand == ABSENT else types[operand] for operand in operation.inputs]
        attributes = _attributes(operation, read, size, variable)
        quantized = [types[operand].quantized for operand in operation.outputs]
        complete, results = inferred(operation.type, read, attributes, quantized)
        for operand, type_ in zip(operation.outputs, results, strict=True):
            types[operand] = type_
        operations.append(Operation(operation.type, operation.inputs, operation.outputs, complete, operation.origins))
    operands = tuple(
        Operand(operand.name, type_, operand.lifetime, operand.value)
        for operand, type_ in zip(model.operands, types, strict=True)
    )
    return Model(operands, tuple(operations), model.inputs, model.outputs)


def _attributes(
    operation: Operation, read: Sequence[OperandType | None], size: int, variable: SymbolicNumber
) -> Mapping[str, AttributeValue]:
    shaped, first = _SHAPED.get(operation.type), read[0] if read else None
    if shaped is None:
        return operation.attributes
    return {
        **operation.attributes,
        **shaped(operation.attributes, () if first is None else first.dimensions, size, variable),
    }


def _filled(
    attributes: Mapping[str, Any], dimensions: Dimensions, size: int, variable: SymbolicNumber
) -> dict[str, Any]:
    return {"shape": _replaced(attributes["shape"], size, variable)}


def _reshaped(
    attributes: Mapping[str, Any], dimensions: Dimensions, size: int, variable: SymbolicNumber
) -> dict[str, Any]:
    """Replace `size` in a RESHAPE's shape by the variable; the largest size follows from the number of elements."""
    named = _replaced(attributes["shape"], size, variable)
    sizes: Dimensions = size_hint(named)
    if not sizes or 0 in sizes:
        return {"shape": named}
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    other_elements = prod(named[:largest]) * prod(named[largest + 1 :])
    return {"shape": (*named[:largest], prod(dimensions) // other_elements, *named[largest + 1 :])}


def _resized_by_scales(
    attributes: Mapping[str, Any], dimensions: Dimensions, size: int, variable: SymbolicNumber
) -> dict[str, Any]:
    each = zip(attributes["shape"], attributes["scales"], dimensions, strict=True)
    return {"shape": tuple(read if scale == 1 else named + 0 * int(read) for named, scale, read in each)}


_SHAPED: Mapping[str, Callable[[Mapping[str, Any], Dimensions, int, SymbolicNumber], dict[str, Any]]] = (
    MappingProxyType(
        {
            "EXPAND": _filled,
            "FILL": _filled,
            "RESHAPE": _reshaped,
            "RESIZE_NEAREST": _resized_by_scales,
            "RESIZE_LINEAR": _resized_by_scales,
        }
    )
)


def _replaced(dimensions: Dimensions, size: int, variable: SymbolicNumber) -> Dimensions:
    return tuple(variable if dimension == size else dimension for dimension in dimensions)


def _with(type_: OperandType, dimensions: Dimensions) -> OperandType:
    return OperandType(type_.dtype, dimensions, type_.layout, type_.quantization)


def _resized(feed: Array, dimensions: Dimensions, size: int) -> Array:
    for axis, dimension in enumerate(dimensions):
        if isinstance(dimension, SymbolicNumber):
            feed = np.take(feed, np.arange(size) % feed.shape[axis], axis)
    return feed


_SIZES = (12, 1, 2, 5, 3, 33, 0)
_WANTED = 3
_MOST_ELEMENTS = 1 << 13
_SINGLE_SIZE_SAMPLES = 2
_UNSUPPORTED_SKIP_REASON = "the device supports no such operation"
_NO_OTHER = "the model is valid at one size only"
_DECIDED = "its program is for one size only, because the driver guards on it"


def ir_sizes(bench: Bench) -> Iterator[Case]:
    """Yield cases of each operation with a dynamic size, and random graphs."""
    if bench.device.full_capability.dynamic_shapes is DynamicShapes.NONE:
        yield Case("sizes/none/0", _skip_static)
        return
    for type_ in operation_types(bench):
        for number in range(1 if bench.settings.short else 2):
            yield Case(f"sizes/{type_}/{number}", partial(_operation, type_=type_))
    for number in range(10 if bench.settings.short else 60):
        yield Case(f"sizes/random/{number}", _graph)


def onnx_sizes(bench: Bench) -> Iterator[Case]:
    """Yield cases of each ONNX op with a dynamic size, and random graphs."""
    if bench.device.full_capability.dynamic_shapes is DynamicShapes.NONE:
        yield Case("sizes/none/0", _skip_static)
        return
    for op_type in NODES:
        for number in range(1 if bench.settings.short else 4):
            yield Case(f"sizes/{op_type}/{number}", partial(_nodes, op_types=(op_type,)))
    for number in range(10 if bench.settings.short else 60):
        yield Case(f"sizes/random/{number}", _many_nodes)


def _skip_static(bench: Bench, random: Random) -> Outcome:
    return SkippedOutcome("the device compiles for static shapes")


def _operation(bench: Bench, random: Random, type_: str) -> Outcome:
    return _with_each_size(bench, random, of_one_operation(bench, random, type_))


def _graph(bench: Bench, random: Random) -> Outcome:
    return _with_each_size(bench, random, of_many(bench, random, random.randint(2, 8)))


def _with_each_size(bench: Bench, random: Random, random_case: RandomCase | None) -> Outcome:
    outcome: Outcome = SkippedOutcome(_UNSUPPORTED_SKIP_REASON if random_case is None else _NO_OTHER)
    for case in () if random_case is None else opened(random, random_case):
        outcome = _examined(bench, case)
        if not isinstance(outcome, SkippedOutcome):
            break
    return outcome


def _examined(bench: Bench, case: DynamicCase) -> Outcome:
    beyond = beyond_bounds(case.model, bench.device.full_capability)
    if beyond:
        return SkippedOutcome(beyond)
    other_sizes = [size for size in _SIZES if size != case.size and _is_defined(case.at(size))][:_WANTED]
    if not other_sizes:
        return SkippedOutcome(_NO_OTHER)
    sizes = (case.size, *other_sizes, case.size)
    subjects = [
        of_ir(sized_case, bench.settings.precision) for sized_case in map(case.at, sizes) if sized_case is not None
    ]
    dynamic_subject = replace(subjects[0], model=case.model)
    refusal = bench.refusal(dynamic_subject)
    if refusal:
        return SkippedOutcome(refusal)
    with bench.compiled(dynamic_subject) as program, bench.execution(dynamic_subject, program) as execution:
        number = number_of(execution)
        jobs = [(number, (size,), subject.feeds) for size, subject in zip(sizes, subjects, strict=True)]
        with blamed(OutcomeKind.DOES_NOT_RUN, dynamic_subject, "compute at one size after the other raised"):
            results, changed, positions = _taking_sizes(bench).compute_at(case.model, jobs)
    for got, written, position in zip(results, changed, positions, strict=True):
        failed = subjects[position].judge(got, written)
        if failed is not None:
            return _at(failed, sizes[position])
    return PassedOutcome() if len({sizes[position] for position in positions}) > 1 else SkippedOutcome(_DECIDED)


def _taking_sizes(bench: Bench) -> IsolatedContext:
    context = bench.context
    assert isinstance(context, IsolatedContext), "a device that takes adapter IR is asked as it is"
    return context


def _is_defined(case: RandomCase | None) -> bool:
    """Return True if the model exists, and ONNX defines its results."""
    if case is None or any(prod(operand.type.dimensions) > _MOST_ELEMENTS for operand in case.model.operands):
        return False
    try:
        values = evaluate(case.model, case.feeds)
        expect_tame(list(values.values()))
    except (ArithmeticError, LookupError, ValueError, InvalidModelError):
        return False
    return all(
        RECIPES.get(operation.type, FROM_SCHEMA).sound(
            [None if operand == ABSENT else values[operand] for operand in operation.inputs], operation.attributes
        )
        for operation in case.model.operations
    )


def _nodes(bench: Bench, random: Random, op_types: Sequence[str]) -> Outcome:
    dynamic_model = with_dynamic_dimension(bench, random, op_types)
    return (
        SkippedOutcome("the op does not support these dimensions")
        if dynamic_model is None
        else _computed(bench, dynamic_model)
    )


def _many_nodes(bench: Bench, random: Random) -> Outcome:
    op_types = ops_taken(bench)
    dynamic_model = (
        with_dynamic_dimension(bench, random, random.choices(op_types, k=random.randint(2, 8))) if op_types else None
    )
    return (
        SkippedOutcome("the device supports no op of random graphs")
        if dynamic_model is None
        else _computed(bench, dynamic_model)
    )


def _computed(bench: Bench, dynamic_model: DynamicOnnxModel) -> Outcome:
    original_size = dynamic_model.dimensions[dynamic_model.axis]
    candidate_sizes = [
        original_size,
        *(size for size in _SIZES if size not in (0, original_size)),
    ]  # empty tensors are a different matter in ONNX
    subjects = {
        size: subject
        for size, subject in zip(candidate_sizes, map(dynamic_model.at, candidate_sizes), strict=True)
        if subject
    }
    sizes = [*list(subjects)[: 1 + _WANTED], original_size]
    if original_size not in subjects or len(sizes) == _SINGLE_SIZE_SAMPLES:
        return SkippedOutcome(_NO_OTHER)
    if not bench.takes(dynamic_model.closed):
        return SkippedOutcome(_UNSUPPORTED_SKIP_REASON)
    refusal = bench.not_admitted(subjects[original_size])
    if refusal:
        return SkippedOutcome(refusal)
    with (
        bench.compiled(subjects[original_size]) as program,
        bench.execution(subjects[original_size], program) as execution,
    ):
        for size in sizes:
            try:
                bench.run(subjects[size], execution)
            except CaseFailure as broken:
                return _at(broken.failed, size)
    return PassedOutcome()


def _at(failed: FailedOutcome, size: int) -> FailedOutcome:
    return replace(failed, detail=f"at size {size} of a program with dynamic shapes: {failed.detail}")
