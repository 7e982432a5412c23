"""Shape facts beyond onnx's inference.

- Data-dependent shapes are marked.
- Concat inputs that are always empty are removed, since devices accept no empty tensors (the unrotated part of Phi-3's
  rotary embeddings).
- Ranks are inferred from the lengths of shape inputs. onnx does not do this for Reshape (anchor grids of detectors).
- `Forward` infers in one pass; onnx would restart at each level of computed shapes (`Shape` -> `Div` -> `Reshape`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx
from onnx import helper

from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import copied, with_nodes
from nnadapter.onnx.graphs import value_of, values_of
from nnadapter.onnx.inference import Inference, InitialFacts
from nnadapter.onnx.model import OnnxModel, OnnxNode
from nnadapter.onnx.preparation.folding import Folding, is_known
from nnadapter.records import replace
from partition.graph import ELEMENT_TYPE_OF_DTYPE, Graph, Node, Value

_SHAPED_BY_DATA = frozenset(
    [
        "AffineGrid",
        "BlackmanWindow",
        "CenterCropPad",
        "Col2Im",
        "Compress",
        "ConcatFromSequence",
        "ConstantOfShape",
        "DFT",
        "Expand",
        "HammingWindow",
        "HannWindow",
        "If",
        "Loop",
        "MaxUnpool",
        "MelWeightMatrix",
        "NonMaxSuppression",
        "NonZero",
        "OneHot",
        "OptionalGetElement",
        "Pad",
        "Range",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Reshape",
        "Resize",
        "STFT",
        "Scan",
        "SequenceAt",
        "Slice",
        "Split",
        "SplitToSequence",
        "Squeeze",
        "StringSplit",
        "Tile",
        "TopK",
        "Unique",
        "Unsqueeze",
        "Upsample",
    ]
)
"""Ops whose result shapes may depend on contents. For other ops, a missing shape is unknown or a fault."""


def marked(graph: Graph, positions: Sequence[int], values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Mark values as data-dependent if contents of inputs determine the shape."""
    if all(Value("", shape=shape).static_shape is not None for shape in {value.shape for value in values.values()}):
        return values
    marked_values = dict(values)
    for index in positions:
        node = graph.nodes[index]
        for name in filter(None, node.outputs):
            value = marked_values.get(name, Value(name))
            if value.static_shape is None and value.dtype is not None:
                marked_values[name] = replace(value, data_dependent=_data_decides(node, marked_values))
    return marked_values


def _data_decides(node: Node, values: Mapping[str, Value]) -> bool:
    if any(name in values and values[name].data_dependent for name in node.reads):
        return True
    return node.op_type in _SHAPED_BY_DATA and all(
        name not in values or values[name].static_shape is not None for name in node.reads
    )


def empty_parts(
    nodes: Sequence[OnnxNode], values: Mapping[str, Value], constants: Mapping[str, Array]
) -> Mapping[int, frozenset[int]]:
    """Return Concat position -> positions of always empty inputs; at least one input remains."""
    sizes = _Sizes(nodes, values, constants)
    empty_inputs = {
        position: frozenset(index for index, name in enumerate(node.inputs) if sizes.is_empty(name, node))
        for position, node in enumerate(nodes)
        if node.op_type == "Concat" and node.is_standard and len(node.inputs) > 1
    }
    return {
        position: parts
        for position, parts in empty_inputs.items()
        if parts and len(parts) < len(nodes[position].inputs)
    }


def without_parts(model: onnx.ModelProto, parts: Mapping[int, frozenset[int]]) -> onnx.ModelProto:
    """Return a model without the inputs in `parts`, which maps node to input positions."""
    nodes = [copied(node) if position in parts else node for position, node in enumerate(model.graph.node)]
    for position, left_out in parts.items():
        read = [name for index, name in enumerate(nodes[position].input) if index not in left_out]
        del nodes[position].input[:]
        nodes[position].input.extend(read)
    return with_nodes(model, nodes)


class _Sizes:
    def __init__(self, nodes: Sequence[OnnxNode], values: Mapping[str, Value], constants: Mapping[str, Array]) -> None:
        self._values, self._constants = values, constants
        self._makers = {name: node for node in nodes for name in node.outputs if name}

    def is_empty(self, name: str, concat: OnnxNode) -> bool:
        axis, value = concat.integer("axis", 1), self._values.get(name)
        if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
            return False
        return value.shape[axis] == 0 or self._is_sliced_away(name, axis % len(value.shape), len(value.shape))

    def _is_sliced_away(self, name: str, axis: int, rank: int) -> bool:
        node = self._makers.get(name)
        if node is None or node.op_type != "Slice" or node.domain or len(node.inputs) < _AXES + 1:
            return False
        axes, has_steps = self._numbers(node.inputs[_AXES]), len(node.inputs) > _STEPS and node.inputs[_STEPS]
        steps = self._numbers(node.inputs[_STEPS]) if has_steps else (1,)
        if not steps or axes is None or len(axes) != 1 or axes[0] % rank != axis or steps[0] < 1:
            return False
        data, starts = self._values.get(node.inputs[0]), self._numbers(node.inputs[1])
        length = None if data is None or data.shape is None else data.shape[axis]
        return isinstance(length, int) and starts is not None and len(starts) == 1 and starts[0] >= length

    def _numbers(self, name: str) -> tuple[int, ...] | None:
        array = self._constants.get(name)
        is_small = array is not None and array.dtype.kind == "i" and array.size <= _MOST_NUMBERS
        return tuple(map(int, array.reshape(-1))) if is_small and array is not None else None


_AXES, _STEPS = 3, 4
"""Input positions of Slice since opset 10."""
_MOST_NUMBERS = 64


_Rank = Callable[[Sequence[Value | None]], int | None]


def infer_ranks(
    inference: Inference, nodes: Sequence[OnnxNode], facts: InitialFacts, values: Mapping[str, Value]
) -> Mapping[str, Value]:
    """Return the values that have no rank in `values`, by name, with ranks from the lengths of shape inputs."""
    rankless = {name for name, value in values.items() if value.shape is None}
    stated, inferred_values = dict(facts.stated), values
    while fresh := {info.name: info for info in _ranked_types(nodes, inferred_values, rankless)}:
        stated.update(fresh)
        inferred_values = inference.values(InitialFacts(facts.shapes, facts.constants, facts.nodes, stated))
        rankless = {name for name in rankless if name not in inferred_values or inferred_values[name].shape is None}
    return {
        name: value
        for name, value in inferred_values.items()
        if value.shape is not None and name in values and values[name].shape is None
    }


def _ranked_types(
    nodes: Sequence[OnnxNode], values: Mapping[str, Value], rankless: set[str]
) -> Iterator[onnx.ValueInfoProto]:
    for node in nodes:
        rule = None if node.domain or not rankless.intersection(node.outputs) else _RULES.get(node.op_type)
        rank = None if rule is None else rule([values.get(name) for name in node.inputs])
        if rank is not None and (dtype := values[node.outputs[0]].dtype) in ELEMENT_TYPE_OF_DTYPE:
            yield helper.make_tensor_value_info(node.outputs[0], ELEMENT_TYPE_OF_DTYPE[str(dtype)], [None] * rank)


def _length(value: Value | None) -> int | None:
    size = value.shape[0] if value is not None and value.shape is not None and len(value.shape) == 1 else None
    return size if isinstance(size, int) else None


def _reshaped(inputs: Sequence[Value | None]) -> int | None:
    return _length(inputs[1]) if len(inputs) > 1 else None  # an attribute in the first version


def _filled(inputs: Sequence[Value | None]) -> int | None:
    return _length(inputs[0])


def _expanded(inputs: Sequence[Value | None]) -> int | None:
    data, length = inputs[0], _length(inputs[1])
    return None if length is None or data is None or data.shape is None else max(length, len(data.shape))


_RULES: Mapping[str, _Rank] = MappingProxyType({"Reshape": _reshaped, "ConstantOfShape": _filled, "Expand": _expanded})


class Forward:
    """Forward inference over a graph, with folding.

    1. `Shape` and `Size` of known shapes are constants.
    2. Results without static shape (with `dynamic_shapes`, without rank) are inferred from their node's inputs alone.
    3. Nodes with known inputs are queued. The queue is evaluated when a result's shape depends on it.

    `budget` limits folded bytes.
    """

    def __init__(
        self, read: OnnxModel, inference: Inference, facts: InitialFacts, budget: float, *, dynamic_shapes: bool = False
    ) -> None:
        self._open_sizes = dynamic_shapes
        self._graph = read.graph
        self._inference = inference
        self._nodes = facts.nodes
        self._folding = Folding(read, facts.constants, budget)
        self._types = inference.types(facts)
        self._values = values_of(self._types.values())
        self.stated = dict(facts.stated)
        """Types for later inference over the entire graph."""

    def propagate(self) -> Folding:
        """Visit all nodes, and return the folding of results. Raises InvalidModelError."""
        for index in self._nodes:
            self._visit(index)
        self._folding.evaluate()
        return self._folding

    def _visit(self, index: int) -> None:
        if self._folding.measure(index, self._values):
            return
        self._infer(index)
        if not self._is_known(index) and self._folding.is_awaited(index):
            self._folding.evaluate()
            self._infer(index)
        self._folding.await_evaluation(index, self._values)

    def _is_known(self, index: int) -> bool:
        if self._open_sizes:
            outputs = self._graph.nodes[index].outputs
            return all(name in self._values and self._values[name].shape is not None for name in outputs if name)
        return is_known(self._graph, index, self._values)

    def _infer(self, index: int) -> None:
        if self._is_known(index):
            return
        constants = self._folding.known
        infos = self._inference.stated_of_one(index, self._values, constants, dynamic_shapes=self._open_sizes)
        if infos:
            self.stated.update(infos)
            self._types.update(infos)
            self._values.update((name, value_of(info)) for name, info in infos.items())
            return
        for name, info in self._inference.types_of_one(index, self._types, constants).items():
            value, previous_value = value_of(info), self._values.get(name)
            # Inference over the entire graph may know more, since it follows partially known contents.
            if value.static_shape is not None or previous_value is None or previous_value.shape is None:
                self._types[name], self._values[name] = info, value
