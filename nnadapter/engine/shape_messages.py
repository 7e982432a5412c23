"""Conversion between protobuf messages and the shapes that a dynamic plan serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnadapter.engine.messages import Segments, read_array, read_sizes, write_array, write_ir, write_shape
from nnadapter.engine.shape_sets import ShapeSet
from nnadapter.engine.trace_messages import read_trace, traced_numbers, write_trace
from nnadapter.files.messages import Message
from nnadapter.ir.operand import Array
from nnadapter.ir.structure import GuardedShapes, ShapeDerivedTables, ShapeDerivedValues, SymbolicArray
from nnadapter.ir.symbolic_numbers import SymbolicNumber, SymbolicTrace
from nnadapter.onnx.signature import Shapes
from nnadapter.planning.bounds import Bounds
from nnadapter.store.container import Container, ContainerWriter


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
    """Return the shapes of a DynamicShapes message; `shapes` are those at which its plan was made."""
    size_class = None
    if message.HasField("size_class"):
        size_class = _read_class(message.size_class, shapes, segments)
    if not message.least:
        return ShapeSet(size_class, None)
    least, most = (dict(zip(shapes, map(read_sizes, rows), strict=False)) for rows in (message.least, message.most))
    ranks = list(map(len, shapes.values()))
    if any(list(map(len, bound.values())) != ranks for bound in (least, most)):
        raise segments.container.damaged("bounds of sizes are for other inputs")
    return ShapeSet(size_class, Bounds(least, most, frozenset(message.unread)))


def write_shape_derived_values(message: Message, values: ShapeDerivedValues, writer: ContainerWriter) -> None:
    """Fill a Given message with shape-derived values."""
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
        raise segments.container.damaged("dynamic dimensions do not belong to its inputs")
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
        raise container.damaged(f"{message.contents.name!r} contradicts the sizes")
    return array


def _is_same(array: SymbolicArray, contents: Array) -> bool:
    try:
        return bool((array.current_contents() == contents).all())
    except (ArithmeticError, ValueError, TypeError):
        return False
