"""Layers of a quantized model, matched with the layers of its float model by value names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import array_info, copied, untyped
from nnadapter.onnx.graphs import read_graph, read_nodes, with_nested
from nnadapter.onnx.normal_form import in_order
from nnadapter.records import dataclass
from partition.graph import Graph, Node

_NAMES = ("{}", "{}_DequantizeLinear_Output", "{}_QuantizeLinear_Input")
"""Names of a value in a quantized model, with the suffixes of onnxruntime.quantization."""
_SUFFIX = " of the float model"


@dataclass(frozen=True, slots=True)
class MatchedLayer:
    """Node of a quantized model that computes a value of the float model."""

    value: str
    before: str
    """Name before quantization."""
    after: str
    """Name after dequantization, if there is one."""
    node: Node
    """Node of the layer; for a model input, the node that quantizes it."""


class QuantizedLayers:
    """Layers of a quantized model that compute values of the float model `reference`, in graph order."""

    def __init__(self, reference: onnx.ModelProto, quantized: onnx.ModelProto) -> None:
        self.model = in_order(quantized, read_nodes(quantized))
        self._graph = read_graph(self.model)
        self._quantizing: dict[str, Sequence[int]] = {}
        float_graph = read_graph(in_order(reference, read_nodes(reference)))
        computed = (name for name, at in float_graph.producer.items() if float_graph.nodes[at].op_type != "Constant")
        self.layers = tuple(filter(None, map(self._layer, (*float_graph.inputs, *computed))))

    def _layer(self, value: str) -> MatchedLayer | None:
        graph = self._graph
        names = (form.format(value) for form in _NAMES)
        before = next((name for name in names if name in graph.producer or name in graph.inputs), "")
        if (source := _source(graph, _source(graph, before, "DequantizeLinear"), "QuantizeLinear")) is not None:
            before = source
        if not before or before in self._quantizing:
            return None
        quantizers = _readers(graph, before, "QuantizeLinear")
        dequantizers = [at for q in quantizers for at in _readers(graph, graph.nodes[q].outputs[0], "DequantizeLinear")]
        self._quantizing[before] = [*quantizers, *dequantizers]
        after = graph.nodes[dequantizers[0]].outputs[0] if dequantizers else before
        if after in graph.inputs:
            return None
        return MatchedLayer(value, before, after, graph.nodes[graph.producer.get(before, (quantizers or [0])[0])])

    def separated(self, values: Mapping[str, Array]) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """Return the quantized model cut between its layers, and its inputs from the float model's `values`.

        Layers still quantize their inputs if they do so in the model.
        """
        cuts = {layer.before: layer.value for layer in self.layers if layer.before not in self._graph.inputs}
        doubled = {at for name in cuts for at in self._quantizing[name]}
        renamed = {*cuts, *(self._graph.nodes[at].outputs[0] for at in doubled)}
        nodes: list[onnx.NodeProto] = []
        for at, node in enumerate(self.model.graph.node):
            reader = copied(node)
            for inner in with_nested([reader]):
                inner.input[:] = [name + _SUFFIX if name in renamed else name for name in inner.input]
            if at in doubled:  # once for the layer's own result, and once for its readers
                reader.output[0] += _SUFFIX
                reader.name = reader.name and reader.name + _SUFFIX
                nodes.append(node)
            nodes.append(reader)
        read = {name for node in with_nested(nodes) for name in node.input}
        feed = {name + _SUFFIX: values[value] for name, value in cuts.items() if name + _SUFFIX in read}
        model = with_outputs(self.model, (layer.after for layer in self.layers), nodes)
        model.graph.input.extend(array_info(name, array) for name, array in feed.items())
        return model, feed


def with_outputs(
    model: onnx.ModelProto, names: Iterable[str], nodes: Sequence[onnx.NodeProto] | None = None
) -> onnx.ModelProto:
    """Return the model with `names` as its only outputs, and with `nodes` instead of its own if passed."""
    changed = copied(model)
    del changed.graph.node[:], changed.graph.output[:]
    changed.graph.node.extend(model.graph.node if nodes is None else nodes)
    changed.graph.output.extend(untyped(names))
    return changed


def _source(graph: Graph, name: str | None, op_type: str) -> str | None:
    at = graph.producer.get(name or "")
    return graph.nodes[at].inputs[0] if at is not None and graph.nodes[at].op_type == op_type else None


def _readers(graph: Graph, name: str, op_type: str) -> list[int]:
    readers = ((at, graph.nodes[at]) for at in graph.consumers.get(name, ()))
    return [at for at, node in readers if node.op_type == op_type and node.inputs[0] == name]
