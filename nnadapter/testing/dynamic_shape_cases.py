"""Cases for devices with dynamic shapes: models compiled once and run at several sizes.

One size of a static random model becomes symbolic in all inputs, and the schema's rules infer the others. Guards limit
the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from random import Random
from typing import Any

import numpy as np

import nnadapter.testing.onnx_cases as onnx_cases
from nnadapter.drivers.capability import DynamicShapes, ModelForm
from nnadapter.drivers.isolation.isolated_device import IsolatedContext, number_of
from nnadapter.errors import InvalidModelError
from nnadapter.ir import ABSENT, Array, Model, Operand, OperandType, Operation, SymbolicNumber
from nnadapter.ir.structure import SymbolicModel
from nnadapter.ir.symbolic_numbers import SymbolicTrace, size_hint
from nnadapter.ir.verification import inferred
from nnadapter.planning.bounds import beyond_bounds
from nnadapter.records import dataclass, replace
from nnadapter.testing.ir_cases import UNSUPPORTED, of_many, of_one_operation, operation_types
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
    """Model with one dynamic size, and inputs for one value of that size."""

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
    """Yield variants of the model: each input size in turn, in random order, becomes symbolic."""
    model = case.model
    sizes = sorted({size for operand in model.inputs for size in model.type_at(operand).dimensions if size})
    for size in random.sample(sizes, len(sizes)):
        trace = SymbolicTrace()
        try:
            yield DynamicCase(_with_open_size(model, size, trace.variable(size)), trace, size, case.feeds)
        except (ArithmeticError, InvalidModelError):  # sizes no longer fit together
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


_WITH_SHAPE = ("EXPAND", "FILL", "RESHAPE", "RESIZE_LINEAR", "RESIZE_NEAREST")


def _attributes(
    operation: Operation, read: Sequence[OperandType | None], size: int, variable: SymbolicNumber
) -> Mapping[str, Any]:
    attributes: Mapping[str, Any] = operation.attributes
    if operation.type not in _WITH_SHAPE:
        return attributes
    dimensions: Dimensions = read[0].dimensions if read and read[0] is not None else ()
    shape = _replaced(attributes["shape"], size, variable)
    if operation.type == "RESHAPE":
        shape = _with_inferred_size(shape, dimensions)
    elif operation.type.startswith("RESIZE"):
        each = zip(attributes["shape"], attributes["scales"], dimensions, strict=True)
        shape = tuple(read if scale == 1 else named + 0 * int(read) for named, scale, read in each)
    return {**attributes, "shape": shape}


def _with_inferred_size(shape: Dimensions, dimensions: Dimensions) -> Dimensions:
    sizes: Dimensions = size_hint(shape)
    if not sizes or 0 in sizes:
        return shape
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    other_elements = prod(shape[:largest]) * prod(shape[largest + 1 :])
    return (*shape[:largest], prod(dimensions) // other_elements, *shape[largest + 1 :])


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
_NO_OTHER = "the model is valid at one size only"
_DECIDED = "its program is for one size only, because the driver guards on it"


def sizes(bench: Bench) -> Iterator[Case]:
    """Yield cases with a dynamic size: of each operation or ONNX op, and of random graphs."""
    if bench.device.full_capability.dynamic_shapes is DynamicShapes.NONE:
        yield Case("sizes/none/0", _skip_static)
        return
    if bench.capability.form is ModelForm.IR:
        one, many, types, each = _operation, _graph, operation_types(bench), 2
    else:
        one, many, types, each = _node, _many_nodes, list(onnx_cases.NODES), 4
    for type_ in types:
        for number in range(1 if bench.settings.short else each):
            yield Case(f"sizes/{type_}/{number}", partial(one, type_=type_))
    for number in range(10 if bench.settings.short else 60):
        yield Case(f"sizes/random/{number}", many)


def _skip_static(bench: Bench, random: Random) -> Outcome:
    return SkippedOutcome("the device compiles for static shapes")


def _operation(bench: Bench, random: Random, type_: str) -> Outcome:
    return _with_each_size(bench, random, of_one_operation(bench, random, type_))


def _graph(bench: Bench, random: Random) -> Outcome:
    return _with_each_size(bench, random, of_many(bench, random, random.randint(2, 8)))


def _with_each_size(bench: Bench, random: Random, random_case: RandomCase | None) -> Outcome:
    outcome: Outcome = SkippedOutcome(UNSUPPORTED if random_case is None else _NO_OTHER)
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
    with bench.started(dynamic_subject) as execution:
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


def _node(bench: Bench, random: Random, type_: str) -> Outcome:
    return _computed(
        bench, onnx_cases.with_dynamic_dimension(bench, random, (type_,)), onnx_cases.UNSUPPORTED_DIMENSIONS
    )


def _many_nodes(bench: Bench, random: Random) -> Outcome:
    op_types = onnx_cases.ops_taken(bench)
    chosen = random.choices(op_types, k=random.randint(2, 8)) if op_types else ()
    return _computed(bench, onnx_cases.with_dynamic_dimension(bench, random, chosen), onnx_cases.NO_OPS)


def _computed(bench: Bench, dynamic_model: onnx_cases.DynamicOnnxModel | None, skip_reason: str) -> Outcome:
    if dynamic_model is None:
        return SkippedOutcome(skip_reason)
    original_size = dynamic_model.dimensions[dynamic_model.axis]
    candidate_sizes = [
        original_size,
        *(size for size in _SIZES if size not in (0, original_size)),
    ]  # empty tensors differ in ONNX
    subjects = {
        size: subject
        for size, subject in zip(candidate_sizes, map(dynamic_model.at, candidate_sizes), strict=True)
        if subject
    }
    sizes = [*list(subjects)[: 1 + _WANTED], original_size]
    if original_size not in subjects or len(sizes) == _SINGLE_SIZE_SAMPLES:
        return SkippedOutcome(_NO_OTHER)
    if not bench.takes(dynamic_model.closed):
        return SkippedOutcome(UNSUPPORTED)
    refusal = bench.not_admitted(subjects[original_size])
    if refusal:
        return SkippedOutcome(refusal)
    with bench.started(subjects[original_size]) as execution:
        for size in sizes:
            try:
                bench.run(subjects[size], execution)
            except CaseFailure as broken:
                return _at(broken.failed, size)
    return PassedOutcome()


def _at(failed: FailedOutcome, size: int) -> FailedOutcome:
    return replace(failed, detail=f"at size {size} of a program with dynamic shapes: {failed.detail}")
