"""Nodes and small constants of a serialized model, read without onnx and without its weights."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nnadapter.onnx.wire_format import Contents, fields, varint

FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, FLOAT16, DOUBLE = 1, 2, 3, 4, 5, 6, 7, 10, 11
"""Data types of TensorProto."""
_FORMATS = {FLOAT: "f", FLOAT16: "e", DOUBLE: "d"}
_FORMATS |= {INT8: "b", INT16: "h", INT32: "i", INT64: "q", UINT8: "B", UINT16: "H"}
_INTEGERS = 8
"""The field of AttributeProto."""
_MOST_VALUES = 64
"""Constants with more elements are read without their values."""


class WireConstant(NamedTuple):
    """A constant: its type, its shape, and its values if they are few and stored in the model."""

    data_type: int
    shape: tuple[int, ...]
    values: tuple[float, ...] | None

    @property
    def number(self) -> float | None:
        """The only value; None if there are several, or the value is unknown."""
        return self.values[0] if self.values is not None and len(self.values) == 1 else None


class WireNode(NamedTuple):
    """A node of a graph or function; `attributes` are positions in the contents by name."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, tuple[int, int]]


class WireGraph:
    """The nodes of a graph or function body, and the constants and ranks that are known in it."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.nodes: list[WireNode] = []
        self.constants: dict[str, WireConstant] = {}
        self.ranks: dict[str, int] = {}
        self.producers: dict[str, WireNode] = {}

    def integer(self, node: WireNode, name: str, default: int) -> int:
        """Return an integer attribute of a node."""
        place = node.attributes.get(name)
        if place is None:
            return default
        found = (varint(self.contents, start)[0] for tag, _, start, _ in fields(self.contents, *place) if tag >> 3 == 3)
        return next(found, 0)

    def integers(self, node: WireNode, name: str) -> tuple[int, ...]:
        """Return the integers of an attribute, none if a node does not have it."""
        found: list[int] = []
        for tag, _, start, end in fields(self.contents, *node.attributes.get(name, (0, 0))):
            while tag >> 3 == _INTEGERS and start < end:  # one in a field, or all of them packed
                number, start = varint(self.contents, start)
                found.append(number)
        return tuple(found)


def read_graphs(contents: Contents) -> list[WireGraph]:
    """Return the main graph, all graphs inside it, and the bodies of functions.

    Raises:
        IndexError, UnicodeDecodeError: the contents are no model.
    """
    graphs: list[WireGraph] = []
    for tag, _, start, end in fields(contents, 0, len(contents)):
        if tag >> 3 == 7:
            _read_graph(contents, start, end, None, graphs)
        elif tag >> 3 == 25:
            _read_function(contents, start, end, graphs)
    return graphs


def _read_graph(contents: Contents, start: int, end: int, outer: WireGraph | None, graphs: list[WireGraph]) -> None:
    graph = WireGraph(contents)
    if outer is not None:  # values of the outer graph are visible
        graph.constants.update(outer.constants)
        graph.ranks.update(outer.ranks)
        graph.producers.update(outer.producers)
    graphs.append(graph)
    nodes: list[tuple[int, int]] = []
    for tag, _, begin, stop in fields(contents, start, end):
        kind = tag >> 3
        if kind == 1:
            nodes.append((begin, stop))
        elif kind == 5:
            name, constant = _read_tensor(contents, begin, stop)
            graph.constants[name] = constant
        elif kind in (11, 12, 13):
            _read_rank(contents, begin, stop, graph)
    _read_nodes(nodes, graph, graphs)


def _read_function(contents: Contents, start: int, end: int, graphs: list[WireGraph]) -> None:
    graph = WireGraph(contents)
    graphs.append(graph)
    places = [(begin, stop) for tag, _, begin, stop in fields(contents, start, end) if tag >> 3 == 7]
    _read_nodes(places, graph, graphs)


def _read_nodes(places: Sequence[tuple[int, int]], graph: WireGraph, graphs: list[WireGraph]) -> None:
    contents = graph.contents
    inner: list[tuple[int, int]] = []
    for start, end in places:
        inputs: list[str] = []
        outputs: list[str] = []
        op_type = ""
        attributes: dict[str, tuple[int, int]] = {}
        for tag, _, begin, stop in fields(contents, start, end):
            kind = tag >> 3
            if kind == 1:
                inputs.append(_text(contents, begin, stop))
            elif kind == 2:
                outputs.append(_text(contents, begin, stop))
            elif kind == 4:
                op_type = _text(contents, begin, stop)
            elif kind == 5:
                name, graphs_inside = _read_attribute(contents, begin, stop)
                attributes[name] = begin, stop
                inner += graphs_inside
        node = WireNode(op_type, tuple(inputs), tuple(outputs), attributes)
        graph.nodes.append(node)
        if op_type == "Constant" and outputs:
            constant = _value_of(contents, attributes)
            if constant is not None:
                graph.constants[outputs[0]] = constant
        for output in outputs:
            graph.producers[output] = node
    for start, end in inner:
        _read_graph(contents, start, end, graph, graphs)


def _read_attribute(contents: Contents, start: int, end: int) -> tuple[str, list[tuple[int, int]]]:
    name, graphs = "", []
    for tag, _, begin, stop in fields(contents, start, end):
        if tag >> 3 == 1:
            name = _text(contents, begin, stop)
        elif tag >> 3 in (6, 11):
            graphs.append((begin, stop))
    return name, graphs


def _value_of(contents: Contents, attributes: Mapping[str, tuple[int, int]]) -> WireConstant | None:
    """Return the value of a Constant node."""
    for name, place in attributes.items():
        for tag, _, begin, stop in fields(contents, *place):
            if name == "value" and tag >> 3 == 5:
                return _read_tensor(contents, begin, stop)[1]
            if name == "value_float" and tag >> 3 == 2:
                return WireConstant(FLOAT, (), struct.unpack("<f", contents[begin:stop]))
            if name == "value_int" and tag >> 3 == 3:
                return WireConstant(INT64, (), (_signed(varint(contents, begin)[0]),))
    return None


def _read_tensor(contents: Contents, start: int, end: int) -> tuple[str, WireConstant]:
    """Return the name and the contents of a TensorProto."""
    name, data_type = "", 0
    shape: list[int] = []
    values: tuple[int, int, int, int] | None = None
    for tag, _, begin, stop in fields(contents, start, end):
        kind = tag >> 3
        if kind == 1:
            shape += _integers(contents, tag, begin, stop)
        elif kind == 2:
            data_type = varint(contents, begin)[0]
        elif kind == 8:
            name = _text(contents, begin, stop)
        elif kind in (4, 5, 7, 9, 10) and stop - begin <= 8 * _MOST_VALUES:
            values = kind, tag, begin, stop
    size = 1
    for length in shape:
        size *= length
    numbers = _numbers(contents, data_type, *values) if values is not None and size <= _MOST_VALUES else None
    if numbers is not None and len(numbers) != size:
        numbers = None
    return name, WireConstant(data_type, tuple(shape), numbers if size else ())


def _numbers(contents: Contents, data_type: int, kind: int, tag: int, start: int, end: int) -> tuple[float, ...] | None:
    form = _FORMATS.get(data_type)
    if form is None:
        return None
    if kind == 9 or (kind in (4, 10) and data_type in (FLOAT, DOUBLE)):  # bytes as they are in memory
        count = (end - start) // struct.calcsize(form)
        return struct.unpack(f"<{count}{form}", contents[start : start + count * struct.calcsize(form)])
    whole = _integers(contents, tag, start, end)
    if data_type == FLOAT16:
        return tuple(struct.unpack("<e", struct.pack("<H", value & 0xFFFF))[0] for value in whole)
    return tuple(whole)


def _integers(contents: Contents, tag: int, start: int, end: int) -> list[int]:
    """Return integers, packed or one."""
    if tag & 7 == 0:
        return [_signed(varint(contents, start)[0])]
    found = []
    while start < end:
        value, start = varint(contents, start)
        found.append(_signed(value))
    return found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _read_rank(contents: Contents, start: int, end: int, graph: WireGraph) -> None:
    """Note the rank of a ValueInfoProto, if it has a shape."""
    name = ""
    for tag, _, begin, stop in fields(contents, start, end):
        if tag >> 3 == 1:
            name = _text(contents, begin, stop)
        elif tag >> 3 == 2:
            shapes = (
                (shape_at, shape_end)
                for kind, _, at, until in fields(contents, begin, stop)
                if kind >> 3 == 1
                for inner, _, shape_at, shape_end in fields(contents, at, until)
                if inner >> 3 == 2
            )
            for place in shapes:
                graph.ranks[name] = sum(each >> 3 == 1 for each, *_ in fields(contents, *place))


def _text(contents: Contents, start: int, end: int) -> str:
    return str(contents[start:end], "utf-8")
