"""What is put right in a model that paddle2onnx wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nnadapter.onnx.files import load_model
from nnadapter.paddle_models.quantized import restore, unrounded

if TYPE_CHECKING:
    import onnx

_INT64 = 7
"""Source: onnx.TensorProto.INT64."""


def mended(contents: bytes, outputs: Sequence[str], quantizing: int = 0) -> bytes:
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
