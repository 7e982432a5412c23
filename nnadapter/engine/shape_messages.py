"""Conversion between protobuf messages and the shapes that a dynamic plan serves, with traces of symbolic sizes.

Traces are stored as steps of named functions. Since a forged file could make numbers grow without end (repeated
squares), the reader bounds their bits in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any

from nnadapter.engine.messages import (
    Segments,
    read_array,
    read_sizes,
    traced_numbers,
    write_array,
    write_ir,
    write_shape,
)
from nnadapter.engine.shape_sets import ShapeSet
from nnadapter.errors import CompiledModelError
from nnadapter.files.messages import Message
from nnadapter.ir.operand import Array
from nnadapter.ir.structure import GuardedShapes, ShapeDerivedTables, ShapeDerivedValues, SymbolicArray
from nnadapter.ir.symbolic_numbers import BINARY, UNARY, Constant, Step, SymbolicNumber, SymbolicTrace
from nnadapter.onnx.signature import Shapes
from nnadapter.planning.bounds import Bounds
from nnadapter.store.container import Container, ContainerWriter

_NONE = -1
_NAMES: Mapping[Callable[..., Any], str] = MappingProxyType(
    {function: name for names in (UNARY, BINARY) for name, function in names.items()}
)
_SIZE_BITS, _REAL_BITS, _MOST_BITS = 64, 1024, 1 << 14
_SUMS, _PRODUCTS = frozenset({"add", "sub"}), frozenset({"mul"})
_REMAINDER = "mod"
_KEEPING = frozenset({"neg", "abs", "floordiv", "max", "min", "quotient_of_integers"})
_KINDS: Mapping[type, str] = MappingProxyType({bool: "truth", int: "whole", float: "real"})


def write_trace(message: Message, trace: SymbolicTrace) -> None:
    """Fill a Trace message with a trace of symbolic sizes; numbers keep their positions."""
    functions: dict[str, int] = {}
    for function, first, second in trace.steps:
        if isinstance(function, Constant):
            message.steps.extend((0, len(message.constants), 0))
            write_number(message.constants.add(), function.value)
            continue
        name = _NAMES.get(function)
        if name is None:
            called = getattr(function, "__name__", "a function")
            raise CompiledModelError(f"sizes depend on {called!r}, which compiled models do not support")
        message.steps.extend((functions.setdefault(name, len(functions) + 1), first, second + 1))
    message.functions.extend(functions)
    if _grows_too_much(trace.steps, trace.count - len(trace.steps)):
        raise CompiledModelError(
            "a size is a power of other sizes and may grow without limit, which compiled models do not support"
        )
    for number, answer in trace.answers.items():
        message.answered.append(number)
        write_number(message.answers.add(), answer)


def read_trace(message: Message, variables: Sequence[int], container: Container) -> SymbolicTrace:
    """Return the trace of a Trace message; `variables` are the dynamic sizes at which it was made."""
    steps = list(_steps(message, len(variables), container))
    if _grows_too_much(steps, len(variables)):
        raise container.damaged("a size may grow beyond any limit")
    count = len(variables) + len(steps)
    if len(message.answered) != len(message.answers) or any(number >= count for number in message.answered):
        raise container.damaged("guards are incomplete, or refer to symbolic sizes that do not exist")
    answers = {number: read_number(row) for number, row in zip(message.answered, message.answers, strict=True)}
    try:
        trace = SymbolicTrace.of(variables, steps, answers)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise container.damaged(f"a size cannot be computed: {error}") from error
    if any(trace.hint(number) != answer for number, answer in answers.items()):
        raise container.damaged("a plan does not serve the sizes for which it was made")
    return trace


def write_number(message: Message, number: Any) -> None:
    """Fill a Number message; raise CompiledModelError unless the number is finite and within 64 bits."""
    field = _KINDS.get(type(number))
    try:
        if field is None or not isfinite(number):
            raise ValueError
        setattr(message, field, number)
    except (ValueError, OverflowError):
        raise CompiledModelError(f"{number!r} depends on sizes, but compiled models cannot store it") from None


def read_number(message: Message) -> Any:
    """Return the number of a Number message; 0 if it is empty."""
    return getattr(message, message.WhichOneof("value") or "whole")


def _steps(message: Message, variables: int, container: Container) -> list[Step]:
    rows = message.steps
    if len(rows) % 3:
        raise container.damaged("a step of a trace does not have three numbers")
    functions = [(UNARY.get(name), BINARY.get(name)) for name in message.functions]
    constants = list(map(read_number, message.constants))
    steps: list[Step] = []
    for result, (function, first, raw) in enumerate(zip(rows[::3], rows[1::3], rows[2::3], strict=True), variables):
        second = raw - 1
        if not function:
            if first >= len(constants):
                raise container.damaged("a constant of a trace is missing")
            steps.append((Constant(constants[first]), 0, _NONE))
            continue
        if function > len(functions) or first >= result or second >= result:
            raise container.damaged("a step of a trace reads a missing number")
        named = functions[function - 1][0 if second < 0 else 1]
        if named is None:
            raise container.damaged(f"sizes depend on the unknown function {message.functions[function - 1]!r}")
        steps.append((named, first, second))
    return steps


def _grows_too_much(steps: Sequence[Step], variables: int) -> bool:
    bits = [_SIZE_BITS] * variables
    for function, first, second in steps:
        if isinstance(function, Constant):
            bits.append(_SIZE_BITS if isinstance(function.value, int) else _REAL_BITS)
            continue
        read = [bits[number] for number in (first, second) if number >= 0]
        bits.append(_bits(_NAMES[function], read))
        if bits[-1] > _MOST_BITS:
            return True
    return False


def _bits(name: str, read: Sequence[int]) -> int:
    if name in _SUMS:
        return max(read) + 1
    if name in _PRODUCTS:
        return sum(read)
    if name == _REMAINDER:
        return read[-1]
    return max(read) if name in _KEEPING else _REAL_BITS


def write_shape_set(message: Message, shapes: ShapeSet, writer: ContainerWriter) -> None:
    """Fill a DynamicShapes message; raise CompiledModelError for guards or values without a file format."""
    message.SetInParent()
    sizes, bounds = shapes.guards, shapes.bounds
    if sizes is not None:
        row = message.size_class
        dimensions = [size for shape in sizes.shapes.values() for size in shape]
        row.open.extend(place for place, size in enumerate(dimensions) if isinstance(size, SymbolicNumber))
        write_trace(row.trace, sizes.trace)
        write_shape_derived_values(row.given, sizes.contents, writer)
    if bounds is not None:
        for rows, limits in ((message.least, bounds.least), (message.most, bounds.most)):
            for shape in limits.values():
                write_shape(rows.add(), shape)
        message.unread.extend(sorted(bounds.unread))


def read_shape_set(message: Message, shapes: Shapes, segments: Segments) -> ShapeSet:
    """Return the shapes of a DynamicShapes message; its plan was made at `shapes`."""
    size_class = None
    if message.HasField("size_class"):
        size_class = _read_class(message.size_class, shapes, segments)
    if not message.least:
        return ShapeSet(size_class, None)
    least, most = (dict(zip(shapes, map(read_sizes, rows), strict=False)) for rows in (message.least, message.most))
    ranks = list(map(len, shapes.values()))
    if any(list(map(len, bound.values())) != ranks for bound in (least, most)):
        raise segments.container.damaged("the bounds of sizes have other ranks than the inputs")
    return ShapeSet(size_class, Bounds(least, most, frozenset(message.unread)))


def write_shape_derived_values(message: Message, values: ShapeDerivedValues, writer: ContainerWriter) -> None:
    """Fill a Given message with values that follow from input shapes."""
    message.SetInParent()
    message.names.extend(values.names)
    _write_arrays(message.sizes, values.sizes, writer)
    if values.tables is not None:
        tables = message.tables
        write_ir(tables.model, values.tables.model, tuple(values.tables.sizes), writer)
        _write_arrays(tables.sizes, values.tables.sizes, writer)
        tables.outputs.extend(values.tables.outputs)


def read_shape_derived_values(message: Message, trace: SymbolicTrace, segments: Segments) -> ShapeDerivedValues:
    """Return shape-derived values from a Given message; `trace` computes their sizes."""
    sizes = _read_arrays(message.sizes, trace, segments.container)
    tables = _read_tables(message.tables, trace, segments) if message.HasField("tables") else None
    names = tuple(message.names)
    if sorted(names) != sorted([*sizes, *(tables.outputs if tables is not None else ())]):
        raise segments.container.damaged("shape-derived values do not match their names")
    return ShapeDerivedValues(names, sizes, tables)


def _read_class(message: Message, shapes: Shapes, segments: Segments) -> GuardedShapes:
    sizes = [size for shape in shapes.values() for size in shape]
    open_places = list(message.open)
    if open_places != sorted(set(open_places)) or (open_places and open_places[-1] >= len(sizes)):
        raise segments.container.damaged("positions of dynamic dimensions are not ascending, or not within the inputs")
    trace = read_trace(message.trace, [sizes[place] for place in open_places], segments.container)
    for variable, place in enumerate(open_places):
        sizes[place] = SymbolicNumber(trace, variable)  # type: ignore[call-overload]
    source = iter(sizes)
    traced: Mapping[str, tuple[Any, ...]] = {name: tuple(next(source) for _ in shape) for name, shape in shapes.items()}
    return GuardedShapes(traced, trace, read_shape_derived_values(message.given, trace, segments))


def _read_tables(message: Message, trace: SymbolicTrace, segments: Segments) -> ShapeDerivedTables:
    model = segments.dynamic_model(message.model, trace)
    sizes = _read_arrays(message.sizes, trace, segments.container)
    outputs = tuple(message.outputs)
    if (len(model.inputs), len(model.outputs)) != (len(sizes), len(outputs)):
        raise segments.container.damaged("the model of tables of sizes has other inputs or outputs than declared")
    return ShapeDerivedTables(model, sizes, outputs)


def _write_arrays(messages: Any, arrays: Mapping[str, SymbolicArray], writer: ContainerWriter) -> None:
    for name, array in arrays.items():
        row, items = messages.add(), list(array.items.flat)
        write_array(row.contents, name, array.current_contents(), writer)
        places = [place for place, item in enumerate(items) if isinstance(item, SymbolicNumber)]
        row.places.extend(places)
        row.numbers.extend(items[place].number for place in places)


def _read_arrays(messages: Sequence[Message], trace: SymbolicTrace, container: Container) -> dict[str, SymbolicArray]:
    return {row.contents.name: _read_array(row, trace, container) for row in messages}


def _read_array(message: Message, trace: SymbolicTrace, container: Container) -> SymbolicArray:
    contents: Array = read_array(message.contents, container)
    items = contents.astype(object)
    numbers = traced_numbers(message, items.size, trace, container)
    for place, number in numbers.items():
        items.flat[place] = number
    array = SymbolicArray(items, contents.dtype)
    if not _is_same(array, contents):
        raise container.damaged(f"the contents of {message.contents.name!r} differ from those computed from the sizes")
    return array


def _is_same(array: SymbolicArray, contents: Array) -> bool:
    try:
        return bool((array.current_contents() == contents).all())
    except (ArithmeticError, ValueError, TypeError):
        return False
