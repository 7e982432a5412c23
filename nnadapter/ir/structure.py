"""Symbolic models, their specialization to concrete sizes, and guarded shapes for which one plan holds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from types import MappingProxyType
from typing import Any
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
    exactly,
    is_symbolic,
    size_hint,
    slot_reader,
)
from nnadapter.process.resources import Cache


def numbers(model: Model) -> list[Any]:
    """Every dimension and every number in attributes, in an order that the structure fixes."""
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
    """The same model with other numbers, as many as `numbers` gives and in that order; what stays is shared."""
    source = iter(values)
    operands = tuple(_with_dimensions(operand, source) for operand in model.operands)
    operations = tuple(_with_attributes(operation, source) for operation in model.operations)
    return model.resized(operands, operations, model.covarying_number_groups)


def constants(model: Model) -> list[Array]:
    """The contents of all constants, in an order that the structure fixes."""
    return [operand.value for operand in model.operands if operand.value is not None]


def with_constants(model: Model, values: Sequence[Any]) -> Model:
    """The same model with other contents, as many as `constants` gives and in that order."""
    source = iter(values)
    operands = tuple(
        operand if operand.value is None else Operand(operand.name, operand.type, operand.lifetime, next(source))
        for operand in model.operands
    )
    return Model(operands, model.operations, model.inputs, model.outputs, model.covarying_number_groups)


_MOST_PARTS = 64


class SymbolicModel:
    """A model with traced numbers, filled with plain ones for one set of sizes after the other."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._values = Interned()
        self._types: dict[tuple[object, ...], int] = {}
        self._operands = [
            (index, self._type(operand.type))
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
        """What `ir.model.submodel` makes of it, remembered; itself if it is all of it."""
        key = (tuple(operations), tuple(inputs), tuple(outputs))
        cached_part = self._parts.get(key)
        if cached_part is not None:
            return cached_part
        part = submodel(self._model, *key)
        return self._parts.put(key, self if part.structure == self._model.structure else SymbolicModel(part))

    def specialize(self, replay_values: Sequence[Any]) -> Model:
        """The model with the numbers of a replay."""
        operands, operations = list(self._model.operands), list(self._model.operations)
        values = self._values.substitute_sizes(replay_values)
        types = [
            OperandType(dtype, values[dimensions], *fields)  # type: ignore[arg-type,call-overload]
            for dtype, dimensions, *fields in self._types
        ]
        for index, type_ in self._operands:
            operand = operands[index]
            operands[index] = Operand(operand.name, types[type_], operand.lifetime, operand.value)
        for index, changed in self._operations:
            operation = operations[index]
            attributes = {**operation.attributes, **{name: values[value] for name, value in changed.items()}}
            operations[index] = replace(operation, attributes=attributes)
        model = self._model.resized(tuple(operands), tuple(operations), self._varying)
        # What was checked with traced numbers was checked for all that a replay does not refuse.
        return model.mark_verified() if self._model.is_verified else model

    def _type(self, type_: OperandType) -> int:
        key = (type_.dtype, self._values.add(type_.dimensions), type_.layout, type_.quantization)
        return self._types.setdefault(key, len(self._types))


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
    """Whether all are the very same numbers; to compare traced ones would be to decide something."""
    return all(item is other for item, other in zip(first, second, strict=True))


InputOutputTypes = tuple[tuple[OperandType, ...], tuple[OperandType, ...]]
"""Types of what goes into a model, and of what comes out."""
_INTEGERS = frozenset([int])
"""Types of numbers that are equal only where they are the same."""


class Replay:
    """The numbers of a trace at some sizes, and what models made of them that they share."""

    def __init__(self, replay_values: Sequence[Any], types: Callable[[], list[OperandType]]) -> None:
        self.replay_values = replay_values
        """Every number."""
        self._types = types
        self.places: list[int] = []
        """Of the models that were filled, among those that are filled together."""
        self._prepared: dict[Hashable, Any] = {}

    @cached_property
    def types(self) -> list[OperandType]:
        """Traced types of the models, by what `SpecializationGroup` numbers them."""
        return self._types()

    def prepared(self, key: Hashable, prepare: Callable[[Replay], Any]) -> Any:
        """What `prepare` made of it, once for all models; twice where two threads ask at the same time."""
        if key not in self._prepared:
            self._prepared[key] = prepare(self)
        return self._prepared[key]


class SpecializationGroup:
    """Models of numbers of one trace that are filled by the same replays.

    Args:
        models: who fills them does so in this company from here on.
    """

    def __init__(self, models: Sequence[SpecializableModel]) -> None:
        self._models = tuple(map(ref, models))  # which have this
        self._values = Interned()
        self._types: dict[tuple[Any, ...], int] = {}
        self._borders: dict[Hashable, int] = {}
        self._likenesses: dict[Hashable, Hashable] = {}
        self._prepared: dict[Hashable, Any] = {}
        self._last: Replay | None = None
        for place, model in enumerate(models):
            model.join(self, place)

    @property
    def models(self) -> Sequence[SpecializableModel]:
        """In their places, as long as somebody has them."""
        return tuple([model for reference in self._models if (model := reference()) is not None])

    def add(self, type_: OperandType) -> int:
        """The number of a traced type, the same for types that are equal wherever a replay does not refuse."""
        key = (type_.dtype, self._values.add(type_.dimensions), type_.layout, type_.quantization)
        return self._types.setdefault(key, len(self._types))

    def add_sharing_key(self, sharing_key: Hashable) -> Hashable:
        """The same for all that are equal, so that they are compared at once."""
        return self._likenesses.setdefault(sharing_key, sharing_key)

    def add_signature(self, inputs: Sequence[Hashable], outputs: Sequence[Hashable]) -> int:
        """The number of a border, the same where types of inputs and outputs, or their numbers, are the same."""
        return self._borders.setdefault((tuple(inputs), tuple(outputs)), len(self._borders))

    def at(self, replay_values: Sequence[Any]) -> Replay:
        """What models share at these numbers, as long as the same ones are asked for again."""
        last = self._last
        if last is None or last.replay_values is not replay_values:
            last = self._last = Replay(replay_values, partial(_types_at, self._types, self._values, replay_values))
        return last

    def prepared(self, key: Hashable, prepare: Callable[[SpecializationGroup], Any]) -> Any:
        """What `prepare` made of all, once for all sizes; twice where two threads ask at the same time."""
        if key not in self._prepared:
            self._prepared[key] = prepare(self)
        return self._prepared[key]


def _types_at(types: Iterable[tuple[Any, ...]], values: Interned, replay_values: Sequence[Any]) -> list[OperandType]:
    settled = values.substitute_sizes(replay_values)
    return [OperandType(dtype, settled[dimensions], *type_fields) for dtype, dimensions, *type_fields in types]


class SpecializableModel:
    """A model of traced numbers, of whose inputs some are constants at each sizes.

    Args:
        model: of traced numbers.
        given: operands, among its inputs, whose contents follow from sizes.
    """

    def __init__(self, model: Model, constant_inputs: Sequence[int] = ()) -> None:
        self.given = frozenset(constant_inputs)
        operands = [
            Operand(operand.name, operand.type, Lifetime.CONSTANT) if index in self.given else operand
            for index, operand in enumerate(model.operands)
        ]
        inputs = tuple(index for index in model.inputs if index not in self.given)
        self.model = Model(tuple(operands), model.operations, inputs, model.outputs)
        """It, those inputs being constants without contents."""
        self.traced = SymbolicModel(model)
        self.is_verified = model.is_verified
        self.has_traced_operations = any(map(is_symbolic, _values(model.operations)))
        every = numbers(model)
        self._traced_numbers = tuple([value.number for value in every if isinstance(value, SymbolicNumber)])
        plain = repr([None if isinstance(value, SymbolicNumber) else value for value in every])
        self._take = slot_reader(list(self._traced_numbers))
        self.likeness: Hashable = (self.model.structure, plain)
        """What models have in common that differ in names, in traced numbers and in what constants hold."""
        holds = self.given or any(model_operand.value is not None for model_operand in operands)
        self.kind: Hashable = (self.likeness, self._traced_numbers, object() if holds else None)
        """Equal for those of one trace that are the same at any sizes, but for names; with constants, none is."""
        self._types: dict[int, int] = {}
        """By operand whose type is traced, the number of that."""
        SpecializationGroup([self])

    group: SpecializationGroup
    """Those that are filled with it; itself alone, as long as nobody says otherwise."""
    group_index: int
    """Among them."""
    signature_key: int
    """Equal for those of them of which the same goes in and comes out, at any sizes."""

    def join(self, together: SpecializationGroup, place: int) -> None:
        """Be filled with others from here on."""
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
        """The numbers of the model in the order of `ir.structure.numbers`, equal where they are the very same."""
        model_values = self._take(replay_values)
        return model_values if _INTEGERS.issuperset(map(type, model_values)) else repr(model_values)

    def type_at(self, operand: int, replay: Replay) -> OperandType:
        """The type of an operand with the numbers of a replay."""
        number = self._types.get(operand)
        return self.model.operands[operand].type if number is None else replay.types[number]


class SpecializedModel(Model):
    """A model at some sizes.

    Args:
        of: the model of traced numbers.
        replay_values: every number of a replay.
        contents: of the operands that are given.
    """

    def __init__(self, of: SpecializableModel, replay_values: Sequence[Any], contents: Mapping[int, Array]) -> None:
        replay = of.group.at(replay_values)
        replay.places.append(of.group_index)
        # Model's own __init__ would want what is made later, and sets every field the slow way.
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
            cached_results={},
        )
        if not of.has_traced_operations:
            self.__dict__["operations"] = of.model.operations

    of: SpecializableModel
    replay_values: Sequence[Any]
    replay: Replay
    contents: Mapping[int, Array]
    cached_results: dict[Hashable, Any]

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
        """Equal for models of one replay that differ in names and in what constants hold."""
        shapes = tuple([(value.dtype, value.shape) for value in self.contents.values()])
        return self.of.likeness, self.of.numbers_at(self.replay_values), shapes

    def type_at(self, operand: int) -> OperandType:
        return self.of.type_at(operand, self.replay)

    def prepared(self, key: Hashable, prepare: Callable[[SpecializedModel], Any]) -> Any:
        """What `prepare` made of it, once; twice where two threads ask at the same time."""
        if key not in self.cached_results:
            self.cached_results[key] = prepare(self)
        return self.cached_results[key]

    def prepare_signature(self, key: Hashable, prepare: Callable[[InputOutputTypes], Any]) -> Any:
        """What `prepare` made of the types of inputs and outputs, once for all models of a replay that share them."""
        return self.replay.prepared((key, self.of.signature_key), lambda _: prepare(self._signature))

    @property
    def _signature(self) -> InputOutputTypes:
        border: InputOutputTypes = self.replay.prepared(
            (InputOutputTypes, self.of.signature_key), lambda _: self._signature_types()
        )
        return border

    def _signature_types(self) -> InputOutputTypes:
        return tuple(map(self.type_at, self.inputs)), tuple(map(self.type_at, self.outputs))

    def __reduce__(self) -> tuple[Any, ...]:
        """The model without what it was made of."""
        return _plain, (
            (self.operands, self.operations, self.inputs, self.outputs, self.covarying_number_groups),
            self.is_verified,
        )

    @cached_property
    def _specialized_model(self) -> Model:
        return self.of.traced.specialize(self.replay_values)


def program_sharing_key_of(model: Model) -> Hashable:
    """Equal for models with known sizes that differ in names and in what constants hold."""
    return (
        model.program_sharing_key() if isinstance(model, SpecializedModel) else (model.structure, repr(numbers(model)))
    )


def _values(operations: Sequence[Operation]) -> list[Any]:
    return [value for operation in operations for value in operation.attributes.values()]


def _plain(parts: tuple[Any, ...], is_sound: bool) -> Model:
    model = Model(*parts)
    return model.mark_verified() if is_sound else model


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicArray:
    """An array whose elements may be traced."""

    items: Array
    """Python numbers and traced ones, of numpy type `object`."""
    dtype: np.dtype[Any]
    """The type that the model has."""

    @classmethod
    def of(cls, array: Array) -> SymbolicArray:
        """The same contents; nothing is traced yet."""
        return cls(array.astype(object), array.dtype)

    @property
    def is_traced(self) -> bool:
        """Whether an element is a traced number."""
        return any(isinstance(item, SymbolicNumber) for item in self.items.flat)

    def plain(self) -> Array:
        """The contents now, on which something is decided from here on."""
        for item in self.items.flat:
            if isinstance(item, SymbolicNumber):
                item.trace.guard(item)
        return self.current_contents()

    def current_contents(self) -> Array:
        """The contents for the sizes that are traced."""
        return self._to_array(list(map(size_hint, self.items.flat)))

    def specialize(self, replay_values: Sequence[Any]) -> Array:
        """The contents for the sizes of a replay."""
        return self._to_array(
            [replay_values[item.number] if type(item) is SymbolicNumber else item for item in self.items.flat]
        )

    def _to_array(self, items: list[Any]) -> Array:
        array = np.array(items, self.dtype).reshape(self.items.shape)
        array.flags.writeable = False
        return array


@dataclass(frozen=True, eq=False)
class ShapeDerivedTables:
    """Operations that make tables, as one model."""

    model: Model
    """Of traced numbers."""
    sizes: Mapping[str, SymbolicArray]
    """What it reads, in the order of its inputs."""
    outputs: tuple[str, ...]

    @cached_property
    def _traced(self) -> SymbolicModel:
        return SymbolicModel(self.model)

    def at(self, replay_values: Sequence[Any]) -> dict[str, Array]:
        """The tables with the numbers of a replay."""
        from nnadapter.ir.definition import by_definition  # of every operation, and few models have tables

        tables = by_definition(
            self._traced.specialize(replay_values), [array.specialize(replay_values) for array in self.sizes.values()]
        )
        return {name: freeze(array) for name, array in zip(self.outputs, tables, strict=True)}


class ShapeDerivedValues:
    """Values by name, for the sizes of a replay.

    Args:
        names: of all of them.
        sizes: those that are single sizes and shapes.
        tables: makes the others; None where there are none.
    """

    def __init__(
        self, names: Iterable[str], sizes: Mapping[str, SymbolicArray], tables: ShapeDerivedTables | None
    ) -> None:
        self.names, self.sizes, self.tables = tuple(names), sizes, tables
        self._last: tuple[Sequence[Any], Mapping[str, Array]] | None = None

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Numbers of the trace that say what the values are."""
        tables = self.tables
        arrays = (*self.sizes.values(), *(tables.sizes.values() if tables is not None else ()))
        items = (item for array in arrays for item in array.items.flat)
        of_tables = numbers(tables.model) if tables is not None else ()
        return frozenset(value.number for value in (*of_tables, *items) if isinstance(value, SymbolicNumber))

    def at(self, replay_values: Sequence[Any]) -> Mapping[str, Array]:
        """The values with the numbers of a replay.

        Raises:
            OverflowError: a size that the model's own type cannot hold.
        """
        last = self._last
        if last is not None and last[0] is replay_values:  # as in a run like the one before
            return last[1]
        values = {name: array.specialize(replay_values) for name, array in self.sizes.items()}
        if self.tables is not None:
            values |= self.tables.at(replay_values)
        self._last = replay_values, values
        return values


_DEEPEST = 4
_SIGNS: Mapping[Callable[..., Any], str] = MappingProxyType(
    {
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
)


def broken(trace: SymbolicTrace, variables: Sequence[int], names: Sequence[str]) -> str:
    """What would be decided otherwise for other variables, in the fewest words; empty if nothing would.

    Args:
        trace: of some variables.
        variables: others, as for `SymbolicTrace.replay`.
        names: what the variables are called.
    """
    steps = trace.steps
    values = _computed(steps, variables)
    if values is None:
        return "sizes cannot be computed"
    texts = [
        f"{_text(steps, number, names)} is {values[number]}, was {answer}"
        for number, answer in trace.answers.items()
        if exactly(values[number]) != exactly(answer)
    ]
    return min(texts, key=lambda text: ("..." in text, len(text)), default="")


def _computed(steps: Sequence[Step], variables: Sequence[int]) -> list[Any] | None:
    """Every number for other variables; None if one cannot be computed."""
    values: list[Any] = list(variables)
    try:
        for function, first, second in steps:
            values.append(function(values[first]) if second < 0 else function(values[first], values[second]))
    except (ArithmeticError, ValueError):
        return None
    return values


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
"""By input."""


@dataclass(frozen=True, eq=False)
class GuardedShapes:
    """Sizes as numbers that follow from the shapes of inputs, and the conditions on them."""

    shapes: Mapping[str, tuple[Any, ...]]
    """Per input, its dimensions, traced where the model leaves them open."""
    trace: SymbolicTrace
    contents: ShapeDerivedValues
    """What segments are given of shapes in every run."""

    @cached_property
    def _dimensions(self) -> DynamicDimensions:
        return DynamicDimensions(self.shapes)

    def sizes(self, shapes: Shapes) -> Sequence[Any] | None:
        """Every number at these shapes; None if they are of another class."""
        variables = self._dimensions.variables(shapes)
        return None if variables is None else self.trace.replay(variables)

    def match(self, shapes: Shapes) -> tuple[bool, Sequence[Any] | None]:
        """Whether these shapes are of it, and every number there."""
        sizes = self.sizes(shapes)
        return sizes is not None, sizes

    def shape_derived_values_at(self, sizes: Sequence[Any]) -> Mapping[str, Array]:
        """What segments are given at these sizes; see `ShapeDerivedValues`."""
        return self.contents.at(sizes)

    def failed_guard(self, shapes: Shapes) -> str:
        """Which condition these shapes break first, in words; empty if they are of the class."""
        variables = self._dimensions.variables(shapes)
        if variables is None:
            return "another number of dimensions, or sizes that the model fixes"
        names = [
            f"{name}[{axis}]"
            for name, dimensions in self.shapes.items()
            for axis, size in enumerate(dimensions)
            if isinstance(size, SymbolicNumber)
        ]
        return broken(self.trace, variables, names)


class DynamicDimensions:
    """Which dimensions of a model's inputs are traced; the others are what they are.

    Every run at new shapes asks it, so where the traced ones stand is worked out once.

    Args:
        traced: per input, its dimensions, traced where the model leaves them open.
    """

    def __init__(self, traced: Mapping[str, tuple[Any, ...]]) -> None:
        self._names, self._ranks = tuple(traced), list(map(len, traced.values()))
        every = list(chain.from_iterable(traced.values()))
        self._variables = slot_reader([place for place, size in enumerate(every) if type(size) is SymbolicNumber])
        self._others = slot_reader([place for place, size in enumerate(every) if type(size) is not SymbolicNumber])
        self._expected = self._others(every)

    def variables(self, shapes: Shapes) -> Sequence[int] | None:
        """The sizes that stand for traced dimensions, in their order; None if the shapes differ elsewhere."""
        input_shapes: list[Any] = list(map(shapes.get, self._names))
        if len(shapes) != len(input_shapes) or None in input_shapes or list(map(len, input_shapes)) != self._ranks:
            return None
        every = tuple(chain.from_iterable(input_shapes))
        return self._variables(every) if self._others(every) == self._expected else None
