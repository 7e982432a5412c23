"""Symbolic models, their specialization to concrete sizes, and guarded shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Self
from weakref import ref

import numpy as np

from nnadapter.ir.model import Model, Operation, is_number, submodel
from nnadapter.ir.operand import Array, Lifetime, Operand, OperandType, freeze
from nnadapter.ir.symbolic_numbers import (
    Constant,
    Interned,
    Step,
    SymbolicNumber,
    SymbolicTrace,
    compute_steps,
    exactly,
    is_symbolic,
    size_hint,
    slot_reader,
)
from nnadapter.process.resources import Cache
from nnadapter.records import dataclass, replace


def numbers(model: Model) -> list[Any]:
    """Return all dimensions and attribute numbers, ordered by the model's structure alone."""
    all_numbers: list[Any] = []
    for operand in model.operands:
        all_numbers += operand.type.dimensions
    for operation in model.operations:
        for value in operation.attributes.values():
            if isinstance(value, tuple):
                all_numbers += value
            elif is_number(value):
                all_numbers.append(value)
    return all_numbers


def with_numbers(model: Model, values: Sequence[Any]) -> Model:
    """Return a copy of the model with these numbers, ordered like `numbers`."""
    source = iter(values)
    operands = tuple(_with_dimensions(operand, source) for operand in model.operands)
    operations = tuple(_with_attributes(operation, source) for operation in model.operations)
    return model.resized(operands, operations, model.covarying_number_groups)


def constants(model: Model) -> list[Array]:
    """Return the contents of all constants, ordered by the model's structure alone."""
    return [operand.value for operand in model.operands if operand.value is not None]


def with_constants(model: Model, values: Sequence[Any]) -> Model:
    """Return a copy of the model with these constants, ordered like `constants`."""
    source = iter(values)
    operands = tuple(
        operand if operand.value is None else Operand(operand.name, operand.type, operand.lifetime, next(source))
        for operand in model.operands
    )
    return Model(operands, model.operations, model.inputs, model.outputs, model.covarying_number_groups)


class _TypeTable:
    def __init__(self, values: Interned) -> None:
        self._values = values
        self._types: dict[tuple[Any, ...], int] = {}

    def add(self, type_: OperandType) -> int:
        """Return the index of a type. Types equal under the guards share one."""
        key = (type_.dtype, self._values.add(type_.dimensions), type_.layout, type_.quantization)
        return self._types.setdefault(key, len(self._types))

    def at(self, values: Sequence[Any]) -> list[OperandType]:
        return [OperandType(dtype, values[dimensions], *fields) for dtype, dimensions, *fields in self._types]


_MOST_PARTS = 64


class SymbolicModel:
    """Symbolic model with an index of its symbolic numbers, for many specializations."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._values = Interned()
        self._types = _TypeTable(self._values)
        self._operands = [
            (index, self._types.add(operand.type))
            for index, operand in enumerate(model.operands)
            if is_symbolic(operand.type.dimensions)
        ]
        self._operations = [
            (
                index,
                {name: self._values.add(value) for name, value in operation.attributes.items() if is_symbolic(value)},
            )
            for index, operation in enumerate(model.operations)
            if any(map(is_symbolic, operation.attributes.values()))
        ]
        self._varying = _varying(numbers(model))
        self._parts: Cache[Hashable, SymbolicModel] = Cache("parts of traced models", _MOST_PARTS)

    def part(self, operations: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> SymbolicModel:
        key = (tuple(operations), tuple(inputs), tuple(outputs))
        cached_part = self._parts.get(key)
        if cached_part is not None:
            return cached_part
        part = submodel(self._model, *key)
        return self._parts.put(key, self if part.structure == self._model.structure else SymbolicModel(part))

    def specialize(self, replay_values: Sequence[Any]) -> Model:
        operands, operations = list(self._model.operands), list(self._model.operations)
        values = self._values.substitute_sizes(replay_values)
        types = self._types.at(values)
        for index, type_ in self._operands:
            operand = operands[index]
            operands[index] = Operand(operand.name, types[type_], operand.lifetime, operand.value)
        for index, changed in self._operations:
            operation = operations[index]
            attributes = {**operation.attributes, **{name: values[value] for name, value in changed.items()}}
            operations[index] = replace(operation, attributes=attributes)
        model = self._model.resized(tuple(operands), tuple(operations), self._varying)
        # Verification with symbolic numbers guarded every fact that it relied on.
        return model.mark_verified() if self._model.is_verified else model


def _varying(values: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    groups: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        if isinstance(value, SymbolicNumber):
            groups.setdefault(value.number, []).append(place)
    return tuple(map(tuple, groups.values()))


def _with_dimensions(operand: Operand, source: Iterator[Any]) -> Operand:
    type_ = operand.type
    dimensions = tuple(next(source) for _ in type_.dimensions)
    if _same(dimensions, type_.dimensions):
        return operand
    changed = OperandType(type_.dtype, dimensions, type_.layout, type_.quantization)
    return Operand(operand.name, changed, operand.lifetime, operand.value)


def _with_attributes(operation: Operation, source: Iterator[Any]) -> Operation:
    changed = {}
    for name, value in operation.attributes.items():
        if isinstance(value, tuple):
            replacement: Any = tuple(next(source) for _ in value)
            if not _same(replacement, value):
                changed[name] = replacement
        elif is_number(value) and (replacement := next(source)) is not value:
            changed[name] = replacement
    if not changed:
        return operation
    attributes = {**operation.attributes, **changed}
    return Operation(operation.type, operation.inputs, operation.outputs, attributes, operation.origins)


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether all elements are identical; `==` would add guards."""
    return all(item is other for item, other in zip(first, second, strict=True))


InputOutputTypes = tuple[tuple[OperandType, ...], tuple[OperandType, ...]]
_INTEGERS = frozenset([int])
"""Types whose equal values are identical, unlike 0.0 and -0.0."""


class _Memoizing:
    _prepared: dict[Hashable, Any]

    def prepared(self, key: Hashable, prepare: Callable[[Self], Any]) -> Any:
        """Return `prepare(self)`, computed at the first call with this key; concurrent calls may both compute it."""
        if key not in self._prepared:
            self._prepared[key] = prepare(self)
        return self._prepared[key]


class Replay(_Memoizing):
    """Values of all symbolic numbers of a trace at concrete sizes, and results that models of the trace share."""

    def __init__(self, replay_values: Sequence[Any], group: SpecializationGroup) -> None:
        self.replay_values = replay_values
        self._group = group
        self.places: list[int] = []
        self._prepared = {}

    @cached_property
    def types(self) -> list[OperandType]:
        return self._group.types_at(self.replay_values)


class SpecializationGroup(_Memoizing):
    """Models with symbolic numbers of one trace, which share types and the results of each specialization."""

    def __init__(self, models: Sequence[SpecializableModel]) -> None:
        self._models = tuple(map(ref, models))  # weak: models own the group
        self._values = Interned()
        self._types = _TypeTable(self._values)
        self._borders: dict[Hashable, int] = {}
        self._likenesses: dict[Hashable, Hashable] = {}
        self._prepared = {}
        self._last: Replay | None = None
        for place, model in enumerate(models):
            model.join(self, place)

    @property
    def models(self) -> Sequence[SpecializableModel]:
        return tuple([model for reference in self._models if (model := reference()) is not None])

    def add(self, type_: OperandType) -> int:
        return self._types.add(type_)

    def add_sharing_key(self, sharing_key: Hashable) -> Hashable:
        return self._likenesses.setdefault(sharing_key, sharing_key)

    def add_signature(self, inputs: Sequence[Hashable], outputs: Sequence[Hashable]) -> int:
        return self._borders.setdefault((tuple(inputs), tuple(outputs)), len(self._borders))

    def at(self, replay_values: Sequence[Any]) -> Replay:
        last = self._last
        if last is None or last.replay_values is not replay_values:
            last = self._last = Replay(replay_values, self)
        return last

    def types_at(self, replay_values: Sequence[Any]) -> list[OperandType]:
        return self._types.at(self._values.substitute_sizes(replay_values))


class SpecializableModel:
    """Symbolic model to specialize for many sizes.

    Sizes determine the contents of `constant_inputs`, so these are constants of the specialized models.
    """

    def __init__(self, model: Model, constant_inputs: Sequence[int] = ()) -> None:
        self.given = frozenset(constant_inputs)
        operands = [
            Operand(operand.name, operand.type, Lifetime.CONSTANT) if index in self.given else operand
            for index, operand in enumerate(model.operands)
        ]
        inputs = tuple(index for index in model.inputs if index not in self.given)
        self.model = Model(tuple(operands), model.operations, inputs, model.outputs)
        """The symbolic model with constants in place of `constant_inputs`, but without their contents."""
        self.traced = SymbolicModel(model)
        self.is_verified = model.is_verified
        self.has_traced_operations = any(
            is_symbolic(value) for operation in model.operations for value in operation.attributes.values()
        )
        all_numbers = numbers(model)
        self._traced_numbers = tuple([value.number for value in all_numbers if isinstance(value, SymbolicNumber)])
        plain = repr([None if isinstance(value, SymbolicNumber) else value for value in all_numbers])
        self._take = slot_reader(list(self._traced_numbers))
        self.likeness: Hashable = (self.model.structure, plain)
        """Key that is equal for models that differ only in names, symbolic numbers and contents of constants."""
        holds = self.given or any(model_operand.value is not None for model_operand in operands)
        self.kind: Hashable = (self.likeness, self._traced_numbers, object() if holds else None)
        """Key that is equal for models of one trace that differ only in names, but unique with constants."""
        self._types: dict[int, int] = {}
        SpecializationGroup([self])

    group: SpecializationGroup
    """Models specialized together; initially only this one."""
    group_index: int
    signature_key: int
    """Key that is equal for models of the group with equal input and output types."""

    def join(self, together: SpecializationGroup, place: int) -> None:
        self.group, self.group_index = together, place
        self.likeness = together.add_sharing_key(self.likeness)
        operands = enumerate(self.model.operands)
        self._types = {
            index: together.add(operand.type) for index, operand in operands if is_symbolic(operand.type.dimensions)
        }
        plain = self.model.operands
        inputs, outputs = (
            [self._types.get(index, plain[index].type) for index in indices]
            for indices in (self.model.inputs, self.model.outputs)
        )
        self.signature_key = together.add_signature(inputs, outputs)

    def numbers_at(self, replay_values: Sequence[Any]) -> Hashable:
        """Return a key of the model's symbolic numbers at these sizes, different for 0.0 and -0.0."""
        model_values = self._take(replay_values)
        return model_values if _INTEGERS.issuperset(map(type, model_values)) else repr(model_values)

    def type_at(self, operand: int, replay: Replay) -> OperandType:
        number = self._types.get(operand)
        return self.model.operands[operand].type if number is None else replay.types[number]


class SpecializedModel(_Memoizing, Model):
    """Model specialized for concrete sizes, with lazy operands and operations.

    `replay_values` are the values of all symbolic numbers. `contents` maps operands to
    constants that sizes determine.
    """

    def __init__(self, of: SpecializableModel, replay_values: Sequence[Any], contents: Mapping[int, Array]) -> None:
        replay = of.group.at(replay_values)
        replay.places.append(of.group_index)
        # Skip Model.__init__: it needs the lazy fields, and is slower.
        self.__dict__.update(
            of=of,
            replay_values=replay_values,
            replay=replay,
            contents=contents,
            inputs=of.model.inputs,
            outputs=of.model.outputs,
            operation_count=of.model.operation_count,
            is_verified=of.is_verified,
            has_dynamic_shapes=False,
            _prepared={},
        )
        if not of.has_traced_operations:
            self.__dict__["operations"] = of.model.operations

    of: SpecializableModel
    replay_values: Sequence[Any]
    replay: Replay
    contents: Mapping[int, Array]

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        operands = list(self._specialized_model.operands)
        for index, value in self.contents.items():
            operand = operands[index]
            assert value.shape == operand.type.dimensions, f"{operand.name} is {value.shape}, not {operand.type}"
            operands[index] = Operand(operand.name, operand.type, Lifetime.CONSTANT, value)
        return tuple(operands)

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        return self._specialized_model.operations

    @cached_property
    def covarying_number_groups(self) -> tuple[tuple[int, ...], ...]:
        return self._specialized_model.covarying_number_groups

    @cached_property
    def structure(self) -> Hashable:
        if not self.contents:
            return self.of.model.structure
        return Model(self.operands, self.operations, self.inputs, self.outputs).structure

    def program_sharing_key(self) -> Hashable:
        shapes = tuple([(value.dtype, value.shape) for value in self.contents.values()])
        return self.of.likeness, self.of.numbers_at(self.replay_values), shapes

    def type_at(self, operand: int) -> OperandType:
        return self.of.type_at(operand, self.replay)

    def prepare_signature(self, key: Hashable, prepare: Callable[[InputOutputTypes], Any]) -> Any:
        """Return `prepare(input and output types)`, memoized by `key` for all models of a replay with these types."""
        number = self.of.signature_key
        return self.replay.prepared(
            (key, number), lambda replay: prepare(replay.prepared((InputOutputTypes, number), self._signature))
        )

    def _signature(self, replay: Replay) -> InputOutputTypes:
        return tuple(map(self.type_at, self.inputs)), tuple(map(self.type_at, self.outputs))

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain, (
            (self.operands, self.operations, self.inputs, self.outputs, self.covarying_number_groups),
            self.is_verified,
        )

    @cached_property
    def _specialized_model(self) -> Model:
        return self.of.traced.specialize(self.replay_values)


def program_sharing_key_of(model: Model) -> Hashable:
    """Return a key for sharing programs of static models, which ignores names and contents of constants."""
    if isinstance(model, SpecializedModel):
        return model.program_sharing_key()
    return model.structure, repr(numbers(model))


def _plain(parts: tuple[Any, ...], is_sound: bool) -> Model:
    model = Model(*parts)
    return model.mark_verified() if is_sound else model


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicArray:
    """Array of numbers that may be symbolic."""

    items: Array
    """Python and symbolic numbers, dtype `object`."""
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, array: Array) -> SymbolicArray:
        return cls(array.astype(object), array.dtype)

    @property
    def is_traced(self) -> bool:
        return any(isinstance(item, SymbolicNumber) for item in self.items.flat)

    def plain(self) -> Array:
        """Return the contents at the traced sizes, and guard on each symbolic element."""
        for item in self.items.flat:
            if isinstance(item, SymbolicNumber):
                item.trace.guard(item)
        return self.current_contents()

    def current_contents(self) -> Array:
        """Return the contents at the traced sizes, without a guard."""
        return self._to_array(list(map(size_hint, self.items.flat)))

    def specialize(self, replay_values: Sequence[Any]) -> Array:
        return self._to_array(
            [replay_values[item.number] if type(item) is SymbolicNumber else item for item in self.items.flat]
        )

    def _to_array(self, items: list[Any]) -> Array:
        array = np.array(items, self.dtype).reshape(self.items.shape)
        array.flags.writeable = False
        return array


@dataclass(frozen=True, eq=False)
class ShapeDerivedTables:
    """Model that computes `outputs`, such as tables of positions, from arrays of symbolic sizes."""

    model: Model
    sizes: Mapping[str, SymbolicArray]
    outputs: tuple[str, ...]

    @cached_property
    def _traced(self) -> SymbolicModel:
        return SymbolicModel(self.model)

    def at(self, replay_values: Sequence[Any]) -> dict[str, Array]:
        from nnadapter.ir.definition import by_definition  # loads all definitions, and few models have tables

        tables = by_definition(
            self._traced.specialize(replay_values), [array.specialize(replay_values) for array in self.sizes.values()]
        )
        return {name: freeze(array) for name, array in zip(self.outputs, tables, strict=True)}


class ShapeDerivedValues:
    """Arrays that follow from input shapes: arrays of symbolic sizes, and the outputs of `tables`."""

    def __init__(
        self, names: Iterable[str], sizes: Mapping[str, SymbolicArray], tables: ShapeDerivedTables | None
    ) -> None:
        self.names, self.sizes, self.tables = tuple(names), sizes, tables
        self._last: tuple[Sequence[Any], Mapping[str, Array]] | None = None

    @cached_property
    def numbers(self) -> frozenset[int]:
        tables = self.tables
        arrays = (*self.sizes.values(), *(tables.sizes.values() if tables is not None else ()))
        items = (item for array in arrays for item in array.items.flat)
        of_tables = numbers(tables.model) if tables is not None else ()
        return frozenset(value.number for value in (*of_tables, *items) if isinstance(value, SymbolicNumber))

    def at(self, replay_values: Sequence[Any]) -> Mapping[str, Array]:
        """Return the arrays by name, for these values of all symbolic numbers. The result of the latest call is cached.

        Raises:
            OverflowError: a size does not fit its data type.
        """
        last = self._last
        if last is not None and last[0] is replay_values:
            return last[1]
        values = {name: array.specialize(replay_values) for name, array in self.sizes.items()}
        if self.tables is not None:
            values |= self.tables.at(replay_values)
        self._last = replay_values, values
        return values


_DEEPEST = 4
_SIGNS: Mapping[Callable[..., Any], str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.truediv: "/",
    operator.mod: "%",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


def broken(trace: SymbolicTrace, variables: Sequence[int], names: Sequence[str]) -> str:
    """Describe a guard that fails for these input sizes, called `names`; empty if all hold."""
    steps, values = trace.steps, list[Any](variables)
    try:
        compute_steps(steps, values)
    except (ArithmeticError, ValueError):
        return "sizes cannot be computed"
    texts = [
        f"{_text(steps, number, names)} is {values[number]} instead of {answer}"
        for number, answer in trace.answers.items()
        if exactly(values[number]) != exactly(answer)
    ]
    return min(texts, key=lambda text: ("..." in text, len(text)), default="")


def _text(steps: Sequence[Step], number: int, names: Sequence[str], depth: int = _DEEPEST) -> str:
    if number < len(names):
        return names[number]
    function, first, second = steps[number - len(names)]
    if isinstance(function, Constant):
        return repr(function.value)
    if not depth:
        return "..."
    inner = [_text(steps, operand, names, depth - 1) for operand in (first, second) if operand >= 0]
    sign = _SIGNS.get(function)
    if sign is None or len(inner) != 2:
        return f"{getattr(function, '__name__', 'a function')}({', '.join(inner)})"
    text = f"{inner[0]} {sign} {inner[1]}"
    return text if depth == _DEEPEST else f"({text})"


Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class GuardedShapes:
    """Input shapes for which the guards of one plan hold."""

    shapes: Mapping[str, tuple[Any, ...]]
    """Dimensions by input; symbolic if dynamic."""
    trace: SymbolicTrace
    contents: ShapeDerivedValues

    @cached_property
    def _dimensions(self) -> DynamicDimensions:
        return DynamicDimensions(self.shapes)

    def sizes(self, shapes: Shapes) -> Sequence[Any] | None:
        """Return the values of all symbolic numbers at these shapes; None if a guard fails."""
        variables = self._dimensions.variables(shapes)
        return None if variables is None else self.trace.replay(variables)

    def match(self, shapes: Shapes) -> tuple[bool, Sequence[Any] | None]:
        sizes = self.sizes(shapes)
        return sizes is not None, sizes

    def shape_derived_values_at(self, sizes: Sequence[Any]) -> Mapping[str, Array]:
        return self.contents.at(sizes)

    def failed_guard(self, shapes: Shapes) -> str:
        """Describe a guard that fails for these shapes; empty if all hold."""
        variables = self._dimensions.variables(shapes)
        if variables is None:
            return "the number of dimensions or a size that the model fixes differs"
        names = [
            f"{name}[{axis}]"
            for name, dimensions in self.shapes.items()
            for axis, size in enumerate(dimensions)
            if isinstance(size, SymbolicNumber)
        ]
        return broken(self.trace, variables, names)


class DynamicDimensions:
    """Positions of the dynamic dimensions among all input dimensions."""

    def __init__(self, traced: Mapping[str, tuple[Any, ...]]) -> None:
        self._names, self._ranks = tuple(traced), list(map(len, traced.values()))
        every = list(chain.from_iterable(traced.values()))
        self._variables = slot_reader([place for place, size in enumerate(every) if type(size) is SymbolicNumber])
        self._others = slot_reader([place for place, size in enumerate(every) if type(size) is not SymbolicNumber])
        self._expected = self._others(every)

    def variables(self, shapes: Shapes) -> Sequence[int] | None:
        """Return the sizes of the dynamic dimensions; None if inputs, ranks or static dimensions differ."""
        input_shapes: list[Any] = list(map(shapes.get, self._names))
        if len(shapes) != len(input_shapes) or None in input_shapes or list(map(len, input_shapes)) != self._ranks:
            return None
        every = tuple(chain.from_iterable(input_shapes))
        return self._variables(every) if self._others(every) == self._expected else None
