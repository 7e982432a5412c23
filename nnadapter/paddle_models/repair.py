"""Repair of models written by paddle2onnx, with 8-bit quantization marked before and restored afterwards.

Operations that quantize to 8 bits, of which paddle2onnx knows the form with floats of 8 bits alone.

In front of the converter they are marked as such (`mark`), and behind it turned back (`restore`): scales are divided by
the largest integer, what was of type float8e4m3fn is int8, and reals are no longer held to what such floats reach.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.onnx.files import load_model
from nnadapter.paddle_models.structures import walked

if TYPE_CHECKING:
    import onnx


_OPERATIONS = ("1.quantize_linear", "1.dequantize_linear")
_INTEGERS = {"bit_length": (8,), "qmin": (-128, -127), "qmax": (127,)}
"""What is taken as integers of 8 bits; axes, and how ties are rounded, are passed on."""
_FLOATS = {"qmin": -448, "qmax": 448}
"""By which the converter tells float8e4m3fn."""
_FLOAT8, _INT8 = 17, 3
"""Source: onnx.TensorProto.FLOAT8E4M3FN, INT8."""
_DIVISORS = {"QuantizeLinear": 448.0, "DequantizeLinear": 112.0}
"""What the converter divides scales by that are the largest real."""


def mark(program: Any) -> int:
    """Make the quantizing operations of a program, in place, those with floats, and return how many there are.

    Raises:
        ValueError: one of them is to fewer or more bits, or to floats.
    """
    operations = [item for item in walked(program) if item["#"] in _OPERATIONS]
    for operation in operations:
        attributes = {attribute["N"]: attribute["AT"] for attribute in operation["A"]}
        for name, allowed_values in _INTEGERS.items():
            value = attributes[name]["D"]
            if value not in allowed_values:
                raise ValueError(
                    f"a {operation['#'].removeprefix('1.')} has {name} {value}, expected {allowed_values[0]}"
                )
        for name, value in _FLOATS.items():
            attributes[name]["D"] = value
    return len(operations)


def restore(model: onnx.ModelProto, count: int) -> None:
    """Make integers of the operations that `mark` marked.

    Raises:
        ValueError: the converter wrote them otherwise than is known.
    """
    made_by = {name: node for node in model.graph.node for name in node.output}
    quantizing = [node for node in model.graph.node if node.op_type in _DIVISORS]
    if len(quantizing) != count:
        raise ValueError(f"{count} operations quantize, and {len(quantizing)} nodes do")
    for node in quantizing:
        division = made_by[_checked_producer(made_by, node.input[1], "Div")]
        _rescale(made_by[_checked_producer(made_by, division.input[1], "Constant")], _DIVISORS[node.op_type])
        _retype(made_by[_checked_producer(made_by, node.input[2], "Cast")])
        if node.op_type == "DequantizeLinear":
            cast = made_by[_checked_producer(made_by, node.input[0], "Cast")]
            _retype(cast)
            producer = made_by.get(cast.input[0])
            if producer is not None and producer.op_type == "Cast" and producer.input[0] in made_by:
                source = made_by[producer.input[0]]
                if source.op_type == "QuantizeLinear":  # integers, as floats, as integers
                    node.input[0] = source.output[0]
            _unbind(model, node.output[0])


def unrounded(model: onnx.ModelProto) -> None:
    """Leave out what quantizes reals and makes reals of them again: Paddle's predictor does so on the CPU."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        source = made_by.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if source is not None and source.op_type == "QuantizeLinear":
            node.op_type = "Identity"
            node.input[0] = source.input[0]
            del node.input[1:], node.attribute[:]


def _checked_producer(made_by: Mapping[str, Any], name: str, op_type: str) -> str:
    """The name, if such a node makes it."""
    if name not in made_by or made_by[name].op_type != op_type:
        raise ValueError(f"value {name!r} of a quantizing node is made by no {op_type}")
    return name


def _rescale(constant: Any, divisor: float) -> None:
    """Have a scale, which is the largest real, divided by the largest integer."""
    (attribute,) = constant.attribute
    if attribute.t.raw_data != struct.pack("<f", divisor):
        raise ValueError("a scale of a quantizing node is divided by something else")
    attribute.t.raw_data = struct.pack("<f", _INTEGERS["qmax"][0])


def _retype(cast: Any) -> None:
    (to,) = cast.attribute
    if to.i != _FLOAT8:
        raise ValueError(f"a Cast of a quantizing node is to type {to.i}, expected {_FLOAT8}")
    to.i = _INT8


def _unbind(model: onnx.ModelProto, name: str) -> None:
    """Make the Max and the Min, that hold reals to what floats of 8 bits reach, pass on what they get."""
    for op_type in ("Max", "Min"):
        bounds = [node for node in model.graph.node if node.op_type == op_type and node.input[0] == name]
        if len(bounds) != 1:
            raise ValueError(f"{len(bounds)} nodes of type {op_type} stand behind a DequantizeLinear, expected 1")
        (bound,) = bounds
        bound.op_type = "Identity"
        del bound.input[1:]
        name = bound.output[0]


_INT64 = 7
"""Source: onnx.TensorProto.INT64."""


def repair_model(contents: bytes, outputs: Sequence[str], quantizing: int = 0) -> bytes:
    """Return a model as it is to be run.

    1. Outputs get the names that they have in Paddle, where the converter gave them others.
    2. Operations that quantize to integers do so again (`quantized`).
    3. Outputs that have no dimensions, of which the converter makes one of a single element, have none.
    4. Nodes and weights that nothing reads are left out.

    Args:
        contents: of the model.
        outputs: names of its outputs in Paddle; none where the model has these.
        quantizing: how many operations quantize.

    Raises:
        InvalidModelError: it is no model.
        ValueError: the converter wrote something otherwise than is known.
    """
    model = load_model(contents)
    named = dict(zip((output.name for output in model.graph.output), outputs, strict=False))
    for node in model.graph.node:
        for position, name in enumerate(node.output):
            node.output[position] = named.get(name, name)
        for position, name in enumerate(node.input):
            node.input[position] = named.get(name, name)
    for value in model.graph.output:
        value.name = named.get(value.name, value.name)
    if quantizing:
        restore(model, quantizing)
    _without_dimensions(model.graph)
    _drop_unread(model.graph)
    return _contents(model)


def without_rounding(contents: bytes) -> bytes:
    """Return a model that quantizes as one that does not, which is what Paddle's predictor runs on the CPU."""
    model = load_model(contents)
    unrounded(model)
    _drop_unread(model.graph)
    return _contents(model)


def _without_dimensions(graph: onnx.GraphProto) -> None:
    """Have outputs that are declared to have no dimensions be so; whoever reads them goes on with one element."""
    for value in graph.output:
        made_at = next((at for at, node in enumerate(graph.node) if value.name in node.output), None)
        kind = value.type.tensor_type
        if made_at is None or not kind.HasField("shape") or kind.shape.dim:
            continue
        elements, shape = f"{value.name}.elements", f"{value.name}.shape"
        for node in graph.node:
            node.output[:] = [elements if name == value.name else name for name in node.output]
            node.input[:] = [elements if name == value.name else name for name in node.input]
        graph.initializer.add(name=shape, dims=[0], data_type=_INT64)
        added = graph.node.add(op_type="Reshape", input=[elements, shape], output=[value.name])
        graph.node.insert(made_at + 1, added)
        del graph.node[-1]


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Remove nodes and initializers that no output depends on."""
    read, nodes = {value.name for value in graph.output}, list[object]()
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            read.update(_read_by(node))
            nodes.append(node)
    initializers = [initializer for initializer in graph.initializer if initializer.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(nodes))
    graph.initializer.extend(initializers)


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, in graphs that it holds as well."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _read_by(inner)


def _contents(model: onnx.ModelProto) -> bytes:
    contents: bytes = model.SerializeToString()
    return contents
