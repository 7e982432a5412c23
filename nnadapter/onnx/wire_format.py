"""Protobuf wire format without onnx: fields, size checks, search for words, nodes and small constants."""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, cached_property
from math import prod
from typing import NamedTuple

from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.records import dataclass, field

Contents = bytes | mmap.mmap
NUMBER = 0
"""Wire type of varints."""
BYTES = 2
"""Wire type of messages, strings and bytes."""
GRAPH = 7 << 3 | BYTES
"""Tag in ModelProto."""
INITIALIZER = 5 << 3 | BYTES
"""Tag in GraphProto."""
RAW_DATA = 9 << 3 | BYTES
"""Tag in TensorProto."""
_LONGEST = 10
_FIXED_BYTES = {1: 8, 5: 4}
_NO_TYPES = frozenset((3, 4, 6, 7))


def fields(contents: Contents, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield tag, start, start of the value, and end of each field, or raise IndexError."""
    at = start
    while at < end:
        tag = contents[at]
        begin = at + 1
        if tag & 0x80:
            tag, begin = varint(contents, at)
        if not tag >> 3 or tag & 7 in _NO_TYPES:
            raise IndexError(f"a field has the invalid protobuf tag {tag}")
        size = _FIXED_BYTES.get(tag & 7)
        if size is None:
            value, value_end = varint(contents, begin)
            size, begin = (value, value_end) if tag & 7 == BYTES else (value_end - begin, begin)
        yield tag, at, begin, begin + size
        at = begin + size


def rewritten(
    contents: Contents, start: int, end: int, tag: int, rewrite: Callable[[int, int], bytes | None]
) -> bytes | None:
    """Return a message with fields of `tag` rewritten and lengths updated, or None if unchanged.

    `rewrite` maps value start and end to a new value, or None.

    Raises:
        IndexError: a field exceeds the message.
    """
    pieces: list[bytes] = []
    copy_start = start
    for field_tag, at, begin, stop in fields(contents, start, end):
        if stop > end:
            raise IndexError("a field extends beyond the end of its message")
        inner = rewrite(begin, stop) if field_tag == tag else None
        if inner is not None:
            pieces += [contents[copy_start:at], varint_bytes(tag), varint_bytes(len(inner)), inner]
            copy_start = stop
    return b"".join([*pieces, contents[copy_start:end]]) if pieces else None


def varint(contents: Contents, at: int) -> tuple[int, int]:
    """Return a varint and its end, or raise IndexError."""
    value = 0
    for shift in range(0, 7 * _LONGEST, 7):
        byte = contents[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise IndexError(f"a protobuf number has more than {_LONGEST} bytes")


def varint_bytes(value: int) -> bytes:
    """Encode a varint."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))


_GRAPH = 7
_WEIGHTS = frozenset({5, 15})
"""Field numbers of dense and sparse initializers."""


def mentions(source: str | os.PathLike[str] | bytes, word: bytes) -> bool:
    """Return whether a word occurs in a model outside of initializers; False if unreadable."""
    try:
        with mapped(source) as contents:
            return search(contents)(word)
    except (OSError, ValueError, IndexError, TypeError):
        return False


@contextmanager
def mapped(source: str | os.PathLike[str] | bytes) -> Iterator[Contents]:
    """Yield the contents of a model, memory-mapped if a file.

    Raises:
        OSError, ValueError, TypeError: unreadable, empty, or not a path.
    """
    if isinstance(source, bytes):
        yield source
        return
    with open(source, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        yield contents


def mentioned(contents: Contents, words: frozenset[bytes]) -> frozenset[bytes]:
    """Return the `words` that occur in a model outside of initializers, or raise IndexError."""
    return frozenset(filter(search(contents), words))


def search(contents: Contents) -> Callable[[bytes], bool]:
    """Return a cached search for a word in a model outside of initializers, or raise IndexError."""
    parts = list(_beside_weights(contents))

    @cache
    def is_mentioned(word: bytes) -> bool:
        return any(contents.find(word, start, end) >= 0 for start, end in parts)

    return is_mentioned


def _beside_weights(contents: Contents) -> Iterator[tuple[int, int]]:
    begin = 0
    for tag, _, start, end in fields(contents, 0, len(contents)):
        for inner, _, at, stop in fields(contents, start, end) if tag >> 3 == _GRAPH else ():
            if inner >> 3 in _WEIGHTS:
                yield begin, at
                begin = stop
    yield begin, len(contents)


_FUNCTIONS = 25 << 3 | BYTES
_PIECE_BYTES, _FEW_BYTES = 1 << 20, 16
_INNER: Mapping[str, Mapping[int, str]] = {
    "ModelProto": {
        7: "GraphProto", 8: "OperatorSetIdProto", 14: "StringStringEntryProto", 20: "TrainingInfoProto",
        25: "FunctionProto", 26: "DeviceConfigurationProto",
    },
    "TrainingInfoProto": {
        1: "GraphProto", 2: "GraphProto", 3: "StringStringEntryProto", 4: "StringStringEntryProto",
    },
    "FunctionProto": {
        7: "NodeProto", 9: "OperatorSetIdProto", 11: "AttributeProto", 12: "ValueInfoProto",
        14: "StringStringEntryProto",
    },
    "GraphProto": {
        1: "NodeProto", 5: "TensorProto", 11: "ValueInfoProto", 12: "ValueInfoProto", 13: "ValueInfoProto",
        14: "TensorAnnotation", 15: "SparseTensorProto", 16: "StringStringEntryProto",
    },
    "NodeProto": {5: "AttributeProto", 9: "StringStringEntryProto", 10: "NodeDeviceConfigurationProto"},
    "NodeDeviceConfigurationProto": {2: "ShardingSpecProto"},
    "ShardingSpecProto": {3: "IntIntListEntryProto", 4: "ShardedDimProto"},
    "ShardedDimProto": {2: "SimpleShardedDimProto"},
    "AttributeProto": {
        5: "TensorProto", 6: "GraphProto", 10: "TensorProto", 11: "GraphProto", 14: "TypeProto", 15: "TypeProto",
        22: "SparseTensorProto", 23: "SparseTensorProto",
    },
    "TensorProto": {3: "Segment", 13: "StringStringEntryProto", 16: "StringStringEntryProto"},
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorAnnotation": {2: "StringStringEntryProto"},
    "ValueInfoProto": {2: "TypeProto", 4: "StringStringEntryProto"},
    "TypeProto": {1: "Tensor", 4: "Sequence", 5: "Map", 8: "SparseTensor", 9: "Optional"},
    "Tensor": {2: "TensorShapeProto"},
    "SparseTensor": {2: "TensorShapeProto"},
    "Sequence": {1: "TypeProto"},
    "Optional": {1: "TypeProto"},
    "Map": {2: "TypeProto"},
    "TensorShapeProto": {1: "Dimension"},
}  # fmt: skip
"""Message type -> field number -> type of that field's messages. Source: onnx.proto."""
_MOST: Mapping[tuple[str, int], tuple[int, str]] = {
    ("GraphProto", 1): (limits.NODES, "nodes in a graph"),
    ("GraphProto", 5): (limits.NODES, "initializers in a graph"),
    ("GraphProto", 11): (limits.NODES, "inputs of a graph"),
    ("GraphProto", 12): (limits.NODES, "outputs of a graph"),
    ("FunctionProto", 7): (limits.NODES, "nodes in a function"),
    ("NodeProto", 1): (limits.VALUES_OF_NODE, "inputs of a node"),
    ("NodeProto", 2): (limits.VALUES_OF_NODE, "outputs of a node"),
    ("NodeProto", 5): (limits.ATTRIBUTES, "attributes of a node"),
    ("TensorShapeProto", 1): (limits.DIMENSIONS, "dimensions of a type"),
    ("TensorProto", 1): (limits.DIMENSIONS, "dimensions of a tensor"),
}
"""(message, field) -> limit other than `limits.FIELDS`, and its name in errors."""
_NAMES = frozenset([
    ("GraphProto", 2), ("NodeProto", 1), ("NodeProto", 2), ("NodeProto", 3), ("NodeProto", 4), ("NodeProto", 7),
    ("ValueInfoProto", 1), ("TensorProto", 8), ("AttributeProto", 1), ("AttributeProto", 21), ("Dimension", 3),
    ("FunctionProto", 1), ("FunctionProto", 4), ("FunctionProto", 5), ("FunctionProto", 6), ("FunctionProto", 10),
])  # fmt: skip
_NUMBERS = re.compile(rb"(?s:(?:\x40[\x80-\xff]*+[\x00-\x7f])++|(?:\x3d....)++)")
_STRIDE = (1 << 14) - 1
"""Number of fields between checks of their maximum."""
_FULL_OF_NUMBERS = frozenset(("AttributeProto", "TensorProto"))
_DIMENSIONS = ("TensorProto", 1)
"""Field with the dimensions, which may be packed."""


def check_size(source: str | os.PathLike[str] | bytes, label: str) -> bool:
    """Check a serialized model against the limits. Return whether it has functions.

    Raises:
        InvalidModelError: a limit is exceeded.
        IndexError: not a message.
    """
    try:
        with mapped(source) as contents:
            walk = _Walk(contents, label)
            walk.through("ModelProto", 0, len(contents))
            return walk.has_functions
    except (OSError, ValueError):  # empty, or not mappable
        return False


@dataclass(slots=True)
class _Walk:
    contents: Contents
    description: str
    pairs: int = 0
    has_functions: bool = False
    pending_messages: list[tuple[str, int, int]] = field(default_factory=list)

    def through(self, kind: str, start: int, end: int) -> None:
        """Visit submessages iteratively, since deep nesting could overflow the stack."""
        self.pending_messages.append((kind, start, end))
        while self.pending_messages:
            self._look(*self.pending_messages.pop())

    def _look(self, kind: str, start: int, end: int) -> None:
        counts, since = dict[int, int](), start
        field_spans = (
            self._beside_numbers(start, end) if kind == "AttributeProto" else fields(self.contents, start, end)
        )
        for tag, _, begin, stop in field_spans:
            if stop > end:
                raise IndexError("a field extends beyond the end of its message")
            counts[tag] = count = counts.get(tag, 0) + 1
            if not count & _STRIDE:
                self._count(kind, tag >> 3, count)
            if stop - begin > limits.UNLOOKED_BYTES:
                self._count_pairs(since, begin)
                since = stop
                self._enqueue_large(kind, tag >> 3, begin, stop)
        self._count_pairs(since, end)
        for tag, count in counts.items():
            self._count(kind, tag >> 3, count)
        self.has_functions = self.has_functions or (kind == "ModelProto" and _FUNCTIONS in counts)

    def _beside_numbers(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        while start < end:
            numbers = _NUMBERS.match(self.contents, start, end)
            if numbers:
                start = numbers.end()
                continue
            field_span = next(fields(self.contents, start, end))
            yield field_span
            start = field_span[-1]

    def _count_pairs(self, start: int, end: int) -> None:
        """Count byte pairs that may start messages of fewer than 16 bytes."""
        if end - start > limits.UNLOOKED_BYTES:
            import numpy as np

            begins = np.zeros(256, bool)
            begins[[number << 3 | BYTES for number in range(1, 16)]] = True
            for at in range(start, end, _PIECE_BYTES):
                piece = np.frombuffer(self.contents[at : min(at + _PIECE_BYTES, end)], np.uint8)
                self.pairs += int(np.count_nonzero(begins[piece[:-1]] & (piece[1:] < _FEW_BYTES)))
                if self.pairs > limits.MESSAGES:
                    raise self._beyond(f"more than {limits.MESSAGES:,} messages of a few bytes", limits.MESSAGES)

    def _enqueue_large(self, kind: str, number: int, begin: int, stop: int) -> None:
        message = _INNER.get(kind, {}).get(number)
        if message is not None:
            self.pending_messages.append((message, begin, stop))
        elif (kind, number) == _DIMENSIONS and stop - begin > limits.DIMENSIONS * 10:
            raise self._beyond("a tensor of too many dimensions", limits.DIMENSIONS)
        elif (kind, number) in _NAMES and stop - begin > limits.NAME_BYTES:
            raise self._beyond(f"a name of {stop - begin:,} bytes", limits.NAME_BYTES)

    def _count(self, kind: str, number: int, count: int) -> None:
        most, name = _MOST.get((kind, number), (limits.FIELDS, "fields of one kind in a message"))
        counts = (kind, number) in _MOST or kind not in _FULL_OF_NUMBERS or number in _INNER[kind]
        if counts and count > most:
            raise self._beyond(f"more than {most:,} {name}", most)

    def _beyond(self, amount: str, most: int) -> InvalidModelError:
        return InvalidModelError(
            f"{self.description} has {amount}, expected at most {most:,}; export it again, or see docs/security.md"
        )


FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, FLOAT16, DOUBLE = 1, 2, 3, 4, 5, 6, 7, 10, 11
"""Data types of TensorProto."""
_FORMATS = {FLOAT: "f", FLOAT16: "e", DOUBLE: "d"}
_FORMATS |= {INT8: "b", INT16: "h", INT32: "i", INT64: "q", UINT8: "B", UINT16: "H"}
_INPUT, _OUTPUT, _OP_TYPE, _ATTRIBUTE, _DOMAIN = 0x0A, 0x12, 0x22, 0x2A, 0x3A
_REDUCING = frozenset(("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"))
_KEEPING_RANKS = _REDUCING | frozenset((
    "Abs", "Add", "Cast", "Clip", "Div", "Dropout", "Erf", "Exp", "Identity", "Log", "Max", "Min", "Mul", "Neg", "Pow",
    "Reciprocal", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Sub", "Tanh", "Transpose",
))  # fmt: skip
"""Ops whose result has the highest rank of their operands."""
_GRAPH_TYPES = (b"\xa0\x01\x05", b"\xa0\x01\x0a")
_NAME_OF_TENSOR = 8
_FLOATS, _INTEGERS = 7, 8
_MOST_NODES = 100_000
_DEEPEST_CALL = 32
_MOST_VALUES = 64


class WireConstant(NamedTuple):
    """Constant of a model, with its values if they are few and stored in the model."""

    data_type: int
    shape: tuple[int, ...]
    values: tuple[float, ...] | None
    has_static_type: bool = True

    @property
    def number(self) -> float | None:
        return self.values[0] if self.values is not None and len(self.values) == 1 else None


_UNKNOWN = WireConstant(0, (), None, has_static_type=False)


class WireNode:
    """Node of a graph or function."""

    __slots__ = ("_attributes", "_contents", "_places", "domain", "inputs", "op_type", "outputs")

    def __init__(self, contents: Contents, start: int, end: int) -> None:
        """Read a NodeProto: all fields have one-byte tags and length-delimited values."""
        inputs: list[str] = []
        outputs: list[str] = []
        places: list[tuple[int, int]] = []
        self.op_type = self.domain = ""
        at = start
        while at < end:
            tag, size, begin = contents[at], contents[at + 1], at + 2
            if size & 0x80:
                size, begin = varint(contents, at + 1)
            at = begin + size
            if tag == _INPUT:
                inputs.append(str(contents[begin:at], "utf-8"))
            elif tag == _OUTPUT:
                outputs.append(str(contents[begin:at], "utf-8"))
            elif tag == _OP_TYPE:
                self.op_type = str(contents[begin:at], "utf-8")
            elif tag == _ATTRIBUTE:
                places.append((begin, at))
            elif tag == _DOMAIN:
                self.domain = str(contents[begin:at], "utf-8")
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._contents, self._places = contents, places
        self._attributes: Mapping[str, tuple[int, int]] | None = None

    @property
    def attributes(self) -> Mapping[str, tuple[int, int]]:
        if self._attributes is None:
            self._attributes = {_name_of(self._contents, *place): place for place in self._places}
        return self._attributes

    def renamed(self, names: Mapping[str, str]) -> WireNode:
        node = copy(self)
        node.inputs = tuple(names.get(name, name) for name in self.inputs)
        node.outputs = tuple(names.get(name, name) for name in self.outputs)
        return node

    def graphs(self) -> Iterator[tuple[int, int]]:
        if self.op_type == "Constant":
            return
        for begin, end in self._places:
            if any(self._contents.find(kind, begin, end) >= 0 for kind in _GRAPH_TYPES):
                for tag, _, start, stop in fields(self._contents, begin, end):
                    if tag >> 3 in (6, 11):
                        yield start, stop


class WireGraph:
    """Graph or function body, with known constants and ranks."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.nodes: list[WireNode] = []
        self.ranks: dict[str, int] = {}
        self.producers: dict[str, WireNode] = {}
        self._initializers: dict[str, tuple[int, int]] = {}
        self._constants: dict[str, WireConstant | None] = {}
        self._least_ranks: dict[str, int] = {}

    def constant(self, name: str) -> WireConstant | None:
        """Return an initializer or a value that ONNX Runtime folds, if any."""
        if name not in self._constants:
            place, node = self._initializers.get(name), self.producers.get(name)
            if place is not None:
                self._constants[name] = _read_tensor(self.contents, *place)
            elif node is not None and node.op_type == "Constant":
                self._constants[name] = _value_of(self.contents, node.attributes)
            else:
                is_folded = node is not None and name in self._folded_names
                self._constants[name] = self._folded(node) if node is not None and is_folded else None
        return self._constants[name]

    @cached_property
    def _folded_names(self) -> frozenset[str]:
        names = set(self._initializers)
        for node in self.nodes:
            reads = filter(None, node.inputs)
            is_constant = all(name in names for name in reads) if any(node.inputs) else node.op_type == "Constant"
            if is_constant and not any(True for _ in node.graphs()):
                names.update(node.outputs)
        return frozenset(names)

    def _folded(self, node: WireNode) -> WireConstant:
        inputs = [self.constant(name) for name in node.inputs if name]
        first = inputs[0]
        if first is None or not first.has_static_type:
            return _UNKNOWN
        if node.op_type in ("Identity", "Dropout"):
            return first
        if node.op_type == "Cast":
            return first._replace(data_type=self.integer(node, "to", 0))
        if node.op_type == "Unsqueeze":
            axes = inputs[1].shape[0] if len(inputs) > 1 and inputs[1] and inputs[1].shape else 0
            added = axes or len(self.integers(node, "axes"))
            return first._replace(shape=(1,) * added + first.shape)
        if node.op_type == "Reshape" and inputs[1] is not None and inputs[1].values is not None:
            shape = tuple(map(int, inputs[1].values))
            return first._replace(shape=shape) if all(size > 0 for size in shape) else _UNKNOWN
        if node.op_type == "ConstantOfShape" and first.values is not None:
            shape = tuple(map(int, first.values))
            value = _value_of(self.contents, node.attributes) or WireConstant(FLOAT, (), (0.0,))
            numbers = value.values * prod(shape) if value.values and prod(shape) <= _MOST_VALUES else None
            return WireConstant(value.data_type, shape, numbers)
        return _UNKNOWN

    def least_rank(self, name: str, depth: int = 0) -> int:
        """Return the rank of a value, or a lower bound."""
        if name in self.ranks:
            return self.ranks[name]
        if name not in self._least_ranks:
            self._least_ranks[name] = self._least_rank(name, depth)
        return self._least_ranks[name]

    def _least_rank(self, name: str, depth: int) -> int:
        node = self.producers.get(name)
        if node is None or depth > _DEEPEST_CALL or node.op_type not in _KEEPING_RANKS:
            constant = self.constant(name)
            return len(constant.shape) if constant is not None else 0
        if node.op_type in _REDUCING:
            return self.least_rank(node.inputs[0], depth + 1) if self.integer(node, "keepdims", 1) else 0
        return max(self.least_rank(input_name, depth + 1) for input_name in node.inputs)

    def integer(self, node: WireNode, name: str, default: int) -> int:
        place = node.attributes.get(name)
        if place is None:
            return default
        values = (
            varint(self.contents, start)[0] for tag, _, start, _ in fields(self.contents, *place) if tag >> 3 == 3
        )
        return next(values, 0)

    def integers(self, node: WireNode, name: str) -> tuple[int, ...]:
        numbers: list[int] = []
        for tag, _, start, end in fields(self.contents, *node.attributes.get(name, (0, 0))):
            while tag >> 3 == _INTEGERS and start < end:  # packed or single
                number, start = varint(self.contents, start)
                numbers.append(number)
        return tuple(numbers)


class _Body(NamedTuple):
    graph: WireGraph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


_Functions = Mapping[tuple[str, str], _Body]


def read_graphs(contents: Contents) -> list[WireGraph]:
    """Return main graph, subgraphs and function bodies.

    Raises:
        IndexError, UnicodeDecodeError: not a model.
    """
    return _read(contents)[0]


def read_inlined_graphs(contents: Contents) -> list[WireGraph]:
    """Return the graphs of `read_graphs`, and two inlined copies of each graph with calls or If nodes.

    As in ONNX Runtime, one copy has all then-branches, and the other all else-branches.
    """
    graphs, functions = _read(contents)
    inlined: list[WireGraph] = []
    for graph in graphs:
        has_choice = any(node.op_type == "If" for node in graph.nodes)
        has_call = any((node.domain, node.op_type) in functions for node in graph.nodes)
        if has_choice or has_call:
            inlined += [_inlined(graph, functions, branch) for branch in ("then_branch", "else_branch")]
    return graphs + inlined


def _read(contents: Contents) -> tuple[list[WireGraph], _Functions]:
    graphs: list[WireGraph] = []
    functions: dict[tuple[str, str], _Body] = {}
    for tag, _, start, end in fields(contents, 0, len(contents)):
        if tag >> 3 == 7:
            _read_graph(contents, start, end, None, graphs)
        elif tag >> 3 == 25:
            _read_function(contents, start, end, graphs, functions)
    return graphs, functions


def _inlined(graph: WireGraph, functions: _Functions, branch: str) -> WireGraph:
    flat = WireGraph(graph.contents)
    flat.ranks, flat.producers = graph.ranks, dict(graph.producers)
    flat._initializers.update(graph._initializers)

    def add(nodes: Sequence[WireNode], names: Mapping[str, str], depth: int) -> None:
        for node in nodes:
            body = functions.get((node.domain, node.op_type)) or _branch_of(graph, node, branch)
            renamed = node.renamed(names)
            if body is None or depth > _DEEPEST_CALL or len(flat.nodes) > _MOST_NODES:
                flat.nodes.append(renamed)
                flat.producers.update(dict.fromkeys(renamed.outputs, renamed))
                continue
            local_names = (*body.graph._initializers, *(name for inner in body.graph.nodes for name in inner.outputs))
            prefix = f"{len(flat.nodes)}/{depth}/"
            inner_names = {**(names if node.op_type == "If" else {}), **{name: prefix + name for name in local_names}}
            inner_names.update(zip(body.inputs, renamed.inputs, strict=False))
            flat._initializers.update((inner_names[name], at) for name, at in body.graph._initializers.items())
            add(body.graph.nodes, inner_names, depth + 1)
            for result, name in zip(body.outputs, renamed.outputs, strict=False):
                identity = flat.producers[name] = _identity(inner_names.get(result, result), name)
                flat.nodes.append(identity)

    add(graph.nodes, {}, 0)
    return flat


def _branch_of(graph: WireGraph, node: WireNode, branch: str) -> _Body | None:
    if node.op_type != "If" or branch not in node.attributes:
        return None
    contents = graph.contents
    places = (place[2:] for place in fields(contents, *node.attributes[branch]) if place[0] >> 3 == 6)
    start, end = next(places, (0, 0))
    branch_fields = fields(contents, start, end)
    outputs = tuple(_name_of(contents, begin, stop) for tag, _, begin, stop in branch_fields if tag >> 3 == 12)
    return _Body(_read_graph(contents, start, end, None, []), (), outputs)


def _identity(source: str, result: str) -> WireNode:
    node = WireNode(b"", 0, 0)
    node.op_type, node.inputs, node.outputs = "Identity", (source,), (result,)
    return node


def _read_graph(
    contents: Contents, start: int, end: int, outer: WireGraph | None, graphs: list[WireGraph]
) -> WireGraph:
    graph = WireGraph(contents)
    if outer is not None:  # subgraphs see outer values
        graph._initializers.update(outer._initializers)
        graph.ranks.update(outer.ranks)
        graph.producers.update(outer.producers)
    graphs.append(graph)
    nodes: list[tuple[int, int]] = []
    for tag, _, begin, stop in fields(contents, start, end):
        kind = tag >> 3
        if kind == 1:
            nodes.append((begin, stop))
        elif kind == 5:
            graph._initializers[_name_of(contents, begin, stop, _NAME_OF_TENSOR)] = begin, stop
        elif kind in (11, 12, 13):
            _read_rank(contents, begin, stop, graph)
    _read_nodes(nodes, graph, graphs)
    return graph


def _read_function(
    contents: Contents, start: int, end: int, graphs: list[WireGraph], functions: dict[tuple[str, str], _Body]
) -> None:
    graph = WireGraph(contents)
    graphs.append(graph)
    texts: dict[int, list[str]] = {}
    places: list[tuple[int, int]] = []
    for tag, _, begin, stop in fields(contents, start, end):
        if tag >> 3 == 7:
            places.append((begin, stop))
        elif tag >> 3 in (1, 4, 5, 10):
            texts.setdefault(tag >> 3, []).append(_text(contents, begin, stop))
    _read_nodes(places, graph, graphs)
    key = texts.get(10, [""])[0], texts.get(1, [""])[0]
    functions[key] = _Body(graph, tuple(texts.get(4, ())), tuple(texts.get(5, ())))


def _read_nodes(places: Sequence[tuple[int, int]], graph: WireGraph, graphs: list[WireGraph]) -> None:
    contents = graph.contents
    graph.nodes = [WireNode(contents, start, end) for start, end in places]
    for node in graph.nodes:
        for output in node.outputs:
            graph.producers[output] = node
    for node in graph.nodes:
        for place in node.graphs():
            _read_graph(contents, *place, graph, graphs)


def _name_of(contents: Contents, start: int, end: int, field: int = 1) -> str:
    return next(
        (_text(contents, begin, stop) for tag, _, begin, stop in fields(contents, start, end) if tag >> 3 == field), ""
    )


def _value_of(contents: Contents, attributes: Mapping[str, tuple[int, int]]) -> WireConstant | None:
    for name, place in attributes.items():
        for tag, _, begin, stop in fields(contents, *place):
            if name == "value" and tag >> 3 == 5:
                return _read_tensor(contents, begin, stop)
            if name == "value_float" and tag >> 3 == 2:
                return WireConstant(FLOAT, (), struct.unpack("<f", contents[begin:stop]))
            if name == "value_int" and tag >> 3 == 3:
                return WireConstant(INT64, (), (_signed(varint(contents, begin)[0]),))
        if name in ("value_floats", "value_ints"):
            return _list_of(contents, *place, is_float=name == "value_floats")
    return None


def _list_of(contents: Contents, start: int, end: int, *, is_float: bool) -> WireConstant:
    numbers: list[float] = []
    for tag, _, begin, stop in fields(contents, start, end):
        if tag >> 3 == _FLOATS and is_float:
            numbers += struct.unpack(f"<{(stop - begin) // 4}f", contents[begin:stop])
        elif tag >> 3 == _INTEGERS and not is_float:
            numbers += _integers(contents, tag, begin, stop)
    return WireConstant(FLOAT if is_float else INT64, (len(numbers),), tuple(numbers))


def _read_tensor(contents: Contents, start: int, end: int) -> WireConstant:
    data_type = 0
    shape: list[int] = []
    values: tuple[int, int, int, int] | None = None
    for tag, _, begin, stop in fields(contents, start, end):
        kind = tag >> 3
        if kind == 1:
            shape += _integers(contents, tag, begin, stop)
        elif kind == 2:
            data_type = varint(contents, begin)[0]
        elif kind in (4, 5, 7, 9, 10) and stop - begin <= 8 * _MOST_VALUES:
            values = kind, tag, begin, stop
    size = prod(shape)
    numbers = _numbers(contents, data_type, *values) if values is not None and size <= _MOST_VALUES else None
    if numbers is not None and len(numbers) != size:
        numbers = None
    return WireConstant(data_type, tuple(shape), numbers if size else ())


def _numbers(contents: Contents, data_type: int, kind: int, tag: int, start: int, end: int) -> tuple[float, ...] | None:
    form = _FORMATS.get(data_type)
    if form is None:
        return None
    if kind == 9 or (kind in (4, 10) and data_type in (FLOAT, DOUBLE)):  # little-endian, as in memory
        count = (end - start) // struct.calcsize(form)
        return struct.unpack(f"<{count}{form}", contents[start : start + count * struct.calcsize(form)])
    integers = _integers(contents, tag, start, end)
    if data_type == FLOAT16:
        return tuple(struct.unpack("<e", struct.pack("<H", value & 0xFFFF))[0] for value in integers)
    return tuple(integers)


def _integers(contents: Contents, tag: int, start: int, end: int) -> list[int]:
    if tag & 7 == 0:
        return [_signed(varint(contents, start)[0])]
    values = []
    while start < end:
        value, start = varint(contents, start)
        values.append(_signed(value))
    return values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _read_rank(contents: Contents, start: int, end: int, graph: WireGraph) -> None:
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
                graph.ranks[name] = sum(dimension_tag >> 3 == 1 for dimension_tag, *_ in fields(contents, *place))


def _text(contents: Contents, start: int, end: int) -> str:
    return str(contents[start:end], "utf-8")
