"""Canonical form of an ONNX model, and serialized models with separate large constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nnadapter.ir.operand import Array
from nnadapter.ir.text import Canonical, Contents, NotCanonicalError, counted, digest_of_plain
from nnadapter.onnx.wire_format import BYTES, GRAPH, INITIALIZER, NUMBER, RAW_DATA, fields, rewritten, varint_bytes
from partition.graph import DTYPE_OF_ELEMENT_TYPE, ITEMSIZE_OF_DTYPE

if TYPE_CHECKING:
    import onnx


_LEAST_BYTES = 1 << 10
"""Least bytes of constants that are stored separately; smaller ones, such as shapes, may influence compilation."""
_BY_ADDRESS = frozenset(
    ("float16", "float32", "float64", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
)
"""Data types that ONNX Runtime accepts by memory address."""
_NAME = 8 << 3 | BYTES
_OF_PLACES = (13 << 3 | BYTES, 14 << 3 | NUMBER)
"""Tags of TensorProto.external_data and data_location."""
LOCATION = "compiled"
"""Placeholder for the file name of a separate tensor; such a file is never opened."""


class SeparateTensor(NamedTuple):
    """Constant stored outside of its model."""

    name: str
    dtype: str
    dimensions: tuple[int, ...]
    contents: Array
    """Flat bytes in ONNX's layout."""


def separated(model: onnx.ModelProto) -> tuple[bytes, list[SeparateTensor]]:
    """Remove the contents of large constants from `model`, in place; return its bytes and the constants."""
    from nnadapter.onnx.references import array_of, set_place, with_contents, without_contents

    separate_tensors: list[SeparateTensor] = []
    for tensor in model.graph.initializer:
        if not _is_separable(tensor):
            tensor.CopyFrom(with_contents(tensor))
            continue
        contents = np.ascontiguousarray(array_of(tensor)).reshape(-1).view(np.uint8)
        dtype = DTYPE_OF_ELEMENT_TYPE[tensor.data_type]
        separate_tensors.append(SeparateTensor(tensor.name, dtype, tuple(tensor.dims), contents))
        tensor.CopyFrom(without_contents(tensor))
        set_place(tensor, {"location": LOCATION})
    return model.SerializeToString(), separate_tensors


def joined(contents: bytes, tensors: Sequence[SeparateTensor]) -> onnx.ModelProto:
    """Reassemble the results of `separated`."""
    import onnx

    from nnadapter.onnx.references import set_contents

    model: onnx.ModelProto = onnx.ModelProto.FromString(contents)
    by_name = {tensor.name: tensor for tensor in tensors}
    for tensor in model.graph.initializer:
        if tensor.name in by_name:
            set_contents(tensor, by_name[tensor.name].contents.tobytes())
    return model


def joined_bytes(contents: bytes, tensors: Mapping[str, Array]) -> bytes:
    """Reassemble a model's bytes from the results of `separated`, without onnx."""
    within = partial(rewritten, contents)
    initializer = partial(_filled, contents, tensors)
    model_bytes = within(0, len(contents), GRAPH, lambda start, end: within(start, end, INITIALIZER, initializer))
    return contents if model_bytes is None else model_bytes


def _filled(contents: bytes, tensors: Mapping[str, Array], start: int, end: int) -> bytes | None:
    rows = list(fields(contents, start, end))
    name = next((contents[begin:stop].decode(errors="replace") for tag, _, begin, stop in rows if tag == _NAME), "")
    if name not in tensors:
        return None
    preserved_fields = [contents[at:stop] for tag, at, _, stop in rows if tag not in _OF_PLACES]
    data = tensors[name].reshape(-1).view(np.uint8).data
    return b"".join([*preserved_fields, varint_bytes(RAW_DATA), varint_bytes(data.nbytes), data])


def _is_separable(tensor: onnx.TensorProto) -> bool:
    dtype = DTYPE_OF_ELEMENT_TYPE.get(tensor.data_type, "")
    return dtype in _BY_ADDRESS and prod(tensor.dims) * ITEMSIZE_OF_DTYPE[dtype] >= _LEAST_BYTES


_FOR_PEOPLE = frozenset(
    ("name", "doc_string", "metadata_props", "producer_name", "producer_version", "domain", "model_version")
)
_CANONICAL_FIELDS = {
    "model": frozenset(("ir_version", "opset_import", "graph", "functions")),
    "graph": frozenset(("node", "initializer", "input", "output", "value_info")),
    "node": frozenset(("input", "output", "op_type", "domain", "overload", "attribute")),
    "attribute": frozenset(("type", "f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs")),
    "tensor": frozenset(
        (
            "dims", "data_type", "float_data", "int32_data", "string_data", "int64_data", "raw_data", "external_data",
            "data_location", "double_data", "uint64_data",
        )
    ),
}  # fmt: skip
"""Fields with known effects; other fields prevent a canonical form."""
_STRING = 8
"""Source: onnx.proto, `TensorProto.DataType`."""
_ELSEWHERE = frozenset({"EPContext"})
"""Ops that may depend on an external file."""


def canonical(model: onnx.ModelProto) -> Canonical:
    """Return the canonical form of an ONNX model, independent of value names.

    Raises:
        NotCanonicalError: a field or op has unknown effects.
        ModelFileError: referenced weights cannot be read; raised later, by `Contents.read`.
    """
    _check(model, "model")
    opsets = sorted((opset.domain, opset.version) for opset in model.opset_import)
    functions = [function.SerializeToString(deterministic=True) for function in model.functions]
    writer = _Writer()
    graph = writer.graph(model.graph, None)
    return Canonical(
        structure=digest_of_plain((model.ir_version, opsets, functions, graph)),
        shapes=digest_of_plain(writer.shapes),
        constants=tuple(writer.constants),
        operations=counted(node.op_type for node in model.graph.node),
        inputs=", ".join(map(_shape_in_words, model.graph.input)),
    )


class _Scope:
    def __init__(self, graph: onnx.GraphProto, around: _Scope | None) -> None:
        node_outputs = (name for node in graph.node for name in node.output)
        listed = (row.name for rows in (graph.input, graph.initializer) for row in rows)
        self._own = {*node_outputs, *listed}
        self._around = around
        self._counter: list[int] = [0] if around is None else around._counter
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        if not name:
            return -1
        if self._around is not None and name not in self._own:
            return self._around.number(name)
        if name not in self.numbers:
            self.numbers[name] = self._counter[0]
            self._counter[0] += 1
        return self.numbers[name]


class _Writer:
    def __init__(self) -> None:
        self.shapes: list[Any] = []
        self.constants: list[Contents] = []
        self._sizes: dict[str, int] = {}

    def graph(self, graph: onnx.GraphProto, around: _Scope | None) -> tuple[Any, ...]:
        _check(graph, "graph")
        scope = _Scope(graph, around)
        inputs = [scope.number(row.name) for row in graph.input]
        nodes = [self._node(node, scope) for node in graph.node]
        outputs = [scope.number(row.name) for row in graph.output]
        types = [self._value(row, scope) for rows in (graph.input, graph.output) for row in rows]
        value_infos = [self._value(row, scope) for row in _in_order(graph.value_info, scope)]
        initializers = [(scope.numbers[row.name], self._tensor(row)) for row in _in_order(graph.initializer, scope)]
        return (inputs, nodes, outputs, types, value_infos, initializers)

    def _node(self, node: onnx.NodeProto, scope: _Scope) -> tuple[Any, ...]:
        _check(node, "node")
        if node.op_type in _ELSEWHERE:
            raise NotCanonicalError(f"a node of type {node.op_type} may depend on a file, which has no canonical form")
        reads, makes = ([scope.number(name) for name in names] for names in (node.input, node.output))
        attributes = [
            self._attribute(attribute, scope)
            for attribute in sorted(node.attribute, key=lambda attribute: attribute.name)
        ]
        return (node.domain, node.op_type, node.overload, reads, makes, attributes)

    def _attribute(self, attribute: onnx.AttributeProto, scope: _Scope) -> tuple[Any, ...]:
        _check(attribute, "attribute")
        numbers = (attribute.f, attribute.i, attribute.s, *map(list, (attribute.floats, attribute.ints)))
        tensors = [self._tensor(tensor) for tensor in (*_set(attribute, "t"), *attribute.tensors)]
        graphs = [self.graph(subgraph, scope) for subgraph in (*_set(attribute, "g"), *attribute.graphs)]
        return (attribute.name, attribute.type, *numbers, list(attribute.strings), tensors, graphs)

    def _tensor(self, tensor: onnx.TensorProto) -> tuple[Any, ...]:
        _check(tensor, "tensor")
        self.shapes.append(list(tensor.dims))
        self.constants.append(_contents(tensor))
        return (tensor.data_type, len(tensor.dims))

    def _value(self, value: onnx.ValueInfoProto, scope: _Scope) -> tuple[Any, ...]:
        return (scope.number(value.name), self._type(value.type))

    def _type(self, type_: onnx.TypeProto) -> tuple[Any, ...]:
        kind = type_.WhichOneof("value") or ""
        if kind not in ("tensor_type", ""):  # other containers have no sizes that matter to devices
            return (kind, type_.SerializeToString(deterministic=True))
        tensor = type_.tensor_type
        is_shaped = tensor.HasField("shape")
        if is_shaped:
            self.shapes.append([self._size(size) for size in tensor.shape.dim])
        return (kind, type_.denotation, tensor.elem_type, len(tensor.shape.dim) if is_shaped else None)

    def _size(self, size: onnx.TensorShapeProto.Dimension) -> tuple[str, int]:
        field = size.WhichOneof("value")
        if field == "dim_param":
            return ("any", self._sizes.setdefault(size.dim_param, len(self._sizes)))
        return ("", size.dim_value) if field else ("any", -1)


def _in_order(rows: Sequence[Any], scope: _Scope) -> list[Any]:
    return sorted((row for row in rows if row.name in scope.numbers), key=lambda row: scope.numbers[row.name])


def _contents(tensor: onnx.TensorProto) -> Contents:
    # loads onnx, which compiled model files do not need
    from nnadapter.onnx.references import bytes_of, identity_of, is_reference

    return Contents(partial(_read, tensor), bytes_of(tensor), identity_of(tensor) if is_reference(tensor) else None)


def _read(tensor: onnx.TensorProto) -> Any:
    if tensor.data_type == _STRING:
        joined = b"".join(b"%d:%b" % (len(text), text) for text in tensor.string_data)
        return np.frombuffer(joined, np.uint8)
    from nnadapter.onnx.references import array_of

    return np.ascontiguousarray(array_of(tensor)).reshape(-1).view(np.uint8)


def _set(message: Any, name: str) -> Iterable[Any]:
    return (getattr(message, name),) if message.HasField(name) else ()


def _check(message: Any, kind: str) -> None:
    allowed_fields = _CANONICAL_FIELDS[kind]
    for field, _ in message.ListFields():
        if field.name not in allowed_fields and field.name not in _FOR_PEOPLE:
            raise NotCanonicalError(f"a {kind} of the model has field {field.name}, whose effect on results is unknown")


def _shape_in_words(value: onnx.ValueInfoProto) -> str:
    sizes = (str(size.dim_value) if size.HasField("dim_value") else "?" for size in value.type.tensor_type.shape.dim)
    return f"[{', '.join(sizes)}]"
