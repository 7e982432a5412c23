"""Shape inference over a weight-free skeleton of a model.

It corrects these errors of onnx, which ONNX Runtime avoids:

- Before opset 22, pooling windows under `ceil_mode` count even if they start in the end padding.
- With `auto_pad` SAME_*, pooling dilations and ConvTranspose `output_padding` enlarge the result.
- GatherND with a scalar result gets no rank.
- With a dynamic number of keys, the key dimension of Attention's query-key products is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import cast

import onnx
from onnx import helper

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array, OperandType
from nnadapter.onnx.body import body_of
from nnadapter.onnx.construction import add_constants, array_info, copied, model_of, without_inner_shapes, without_shape
from nnadapter.onnx.graphs import constant_value, holds_graph, key_of, value_of, values_of
from nnadapter.onnx.model import OnnxModel, OnnxNode
from nnadapter.onnx.propagation import FAILURES, LIKE_INPUT, infer, is_like_input, stand_in
from nnadapter.onnx.schemas import Refusal, is_further
from nnadapter.records import dataclass, field, replace
from partition.graph import ELEMENT_TYPE_OF_DTYPE, Value


class DeclaredTypes:
    """Types that a model declares for its values and outputs, read lazily."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph

    def types(self, names: Sequence[str], values: Mapping[str, Value]) -> dict[str, onnx.ValueInfoProto]:
        """Return the declared types of `names` at the input sizes in `values`; none if a type is not static."""
        types_by_name = {
            name: self._with_static_sizes(self._by_name[name], values) for name in names if name in self._by_name
        }
        is_complete = len(types_by_name) == len(names) and all(
            value_of(info).static_shape is not None for info in types_by_name.values()
        )
        return types_by_name if is_complete else {}

    @cached_property
    def _by_name(self) -> dict[str, onnx.ValueInfoProto]:
        return {info.name: info for info in (*self._graph.value_info, *self._graph.output)}

    @cached_property
    def _places(self) -> dict[str, tuple[str, int]]:
        places: dict[str, tuple[str, int]] = {}
        for info in self._graph.input:
            for axis, dimension in enumerate(info.type.tensor_type.shape.dim):
                if dimension.dim_param:
                    places.setdefault(dimension.dim_param, (info.name, axis))
        return places

    def _with_static_sizes(self, info: onnx.ValueInfoProto, values: Mapping[str, Value]) -> onnx.ValueInfoProto:
        settled = copied(info)
        for dimension in settled.type.tensor_type.shape.dim:
            name, axis = self._places.get(dimension.dim_param, ("", 0))
            shape = values[name].static_shape if name in values else None
            if shape is not None:
                dimension.dim_value = shape[axis]
        return settled


Shape = tuple[int, ...]
OpenShape = tuple[int | str | None, ...]
_PRODUCTS = 3
"""Position of the query-key products among Attention's outputs."""
_Rule = Callable[[OnnxNode, Sequence[Shape]], Shape | None]


def has_rule(node: OnnxNode) -> bool:
    """Return whether a rule corrects a node's result shapes, which onnx may infer wrongly."""
    if (node.op_type not in _RULES and node.op_type != "Attention") or node.domain:
        return False
    if not node.since_version or node.contradiction:
        return False
    if node.op_type == "Attention":
        return bool(node.output(_PRODUCTS))
    if node.op_type == "GatherND":
        return True
    same = str(node.attributes.get("auto_pad", "")).startswith("SAME")
    if node.op_type == "ConvTranspose":
        return same and bool(node.attributes.get("output_padding")) and "output_shape" not in node.attributes
    return bool(node.attributes.get("ceil_mode")) or (same and "dilations" in node.attributes)


def true_shapes(
    node: OnnxNode, inputs: Sequence[OpenShape | None], inferred: Mapping[str, OpenShape | None]
) -> Mapping[str, OpenShape]:
    """Return the correct result shapes of a node that has a rule, by name. `inferred` are the shapes from onnx."""
    if node.op_type == "Attention":
        products = _attended(node, inputs, inferred.get(node.output(_PRODUCTS)))
        return {node.output(_PRODUCTS): products} if products else {}
    static_shapes = [shape for shape in inputs if shape is not None and all(isinstance(size, int) for size in shape)]
    true = _RULES[node.op_type](node, cast("list[Shape]", static_shapes)) if len(static_shapes) == len(inputs) else None
    return {} if true is None else dict.fromkeys(inferred, true)


def _attended(node: OnnxNode, inputs: Sequence[OpenShape | None], products: OpenShape | None) -> OpenShape | None:
    key, past = inputs[1], inputs[4] if node.input(4) else (0, 0, 0)
    counts = (shape and shape[-2] for shape in (key, past))
    return (*products[:-1], None) if products and not all(isinstance(count, int) for count in counts) else None


def _pooled(node: OnnxNode, inputs: Sequence[Shape]) -> Shape | None:
    sizes, kernel = inputs[0][2:], node.integers("kernel_shape") or ()
    strides, dilations = (node.integers(name) or (1,) * len(sizes) for name in ("strides", "dilations"))
    pads = node.integers("pads") or (0,) * (2 * len(sizes))
    if not len(sizes) == len(kernel) == len(strides) == len(dilations) == len(pads) // 2 or min(strides) < 1:
        return None
    begins, ends = pads[: len(sizes)], pads[len(sizes) :]
    axes = zip(sizes, kernel, strides, dilations, begins, ends, strict=True)
    return (*inputs[0][:2], *(_windows(node, *axis) for axis in axes))


def _windows(node: OnnxNode, size: int, kernel: int, stride: int, dilation: int, begin: int, end: int) -> int:
    """Return the number of windows. Source: onnxruntime, PoolAttributes::ComputeSizePadDilations."""
    auto_pad = node.text("auto_pad", "NOTSET")
    if auto_pad != "NOTSET":
        total = (-(-size // stride) - 1) * stride + kernel - size if auto_pad.startswith("SAME") else 0
        smaller = total // 2
        begin, end = (smaller, total - smaller) if auto_pad == "SAME_UPPER" else (total - smaller, smaller)
    room = size + begin + end - (kernel - 1) * dilation - 1
    if not node.integer("ceil_mode", 0):
        return int(room / stride) + 1  # rounds toward 0, so a window wider than its input counts once
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + begin else count


def _transposed(node: OnnxNode, inputs: Sequence[Shape]) -> Shape | None:
    (batch, _, *sizes), (_, channels, *kernel) = inputs[:2]
    lists = (node.integers(name) or (1,) * len(sizes) for name in ("strides", "dilations", "output_padding"))
    strides, dilations, extra = lists
    if not len(sizes) == len(kernel) == len(strides) == len(dilations) == len(extra):
        return None
    axes = zip(sizes, kernel, strides, dilations, extra, strict=True)
    spread = (
        size * stride + min(0, (kernel_size - 1) * dilation + 1 + more - stride)
        for size, kernel_size, stride, dilation, more in axes
    )
    return (batch, channels * node.integer("group", 1), *spread)


def _gathered(node: OnnxNode, inputs: Sequence[Shape]) -> Shape | None:
    data, indices = inputs
    batch = node.integer("batch_dims", 0)
    if not indices or batch < 0 or batch + indices[-1] > len(data) or batch >= len(indices):
        return None
    return (*indices[:-1], *data[batch + indices[-1] :])


_RULES: Mapping[str, _Rule] = {
    "AveragePool": _pooled,
    "ConvTranspose": _transposed,
    "GatherND": _gathered,
    "LpPool": _pooled,
    "MaxPool": _pooled,
}


_DEFAULTS = {"STFT": ("onesided", 1)}
"""Op -> attribute and its schema default, which onnx's inference does not use."""
_UNUSUAL = LIKE_INPUT | _DEFAULTS.keys()
_FAILURE = "(op_type:"
"""Prefix of onnx's messages about a node."""
_UNKNOWN = ("No Op registered", "No Schema registered", "expected to have type but instead is null")
"""onnx's messages about unknown ops and their consumers."""
Types = Mapping[str, onnx.ValueInfoProto]


@dataclass(frozen=True, slots=True)
class InitialFacts:
    """Facts that are known before inference."""

    shapes: Mapping[str, tuple[int, ...]]
    """Input shapes; by default the model's."""
    constants: Mapping[str, Array]
    nodes: Sequence[int]
    stated: Types = field(default_factory=dict)
    """Types of results of ops that onnx does not know."""


@contextmanager
def _contradictions_told() -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise InvalidModelError(
            f"the model contradicts itself: {' '.join(str(error).split())}; export it again"
        ) from error


class Inference:
    """Type and shape inference over one model, for various input shapes and constants."""

    def __init__(self, read: OnnxModel) -> None:
        self._read = read
        self._graph = read.graph
        self._model = model = read.model
        self._rules = read.operators.rules
        self._functions = frozenset(map(key_of, model.functions))
        self._doubted = frozenset(index for index, node in enumerate(read.nodes) if has_rule(node))
        inputs = frozenset(read.graph.inputs)
        self._inputs = [value for value in model.graph.input if value.name in inputs]
        self._outputs = [without_shape(value) for value in model.graph.output]
        self._written = DeclaredTypes(model)

    @cached_property
    def has_rules(self) -> bool:
        """True if an op of the model has a type rule or an added schema."""
        kinds = {(node.domain, node.op_type) for node in self._read.nodes}
        return self.has_further or any(kind in self._rules for kind in kinds)

    @cached_property
    def has_further(self) -> bool:
        kinds = {(node.domain, node.op_type, node.since_version) for node in self._read.nodes}
        return any(is_further(*kind) for kind in kinds)

    def states_already(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        return all(value_of(value).static_shape == shapes[value.name] for value in self._inputs if value.name in shapes)

    @_contradictions_told()
    def values(self, facts: InitialFacts) -> dict[str, Value]:
        """Return types and shapes of the values of `facts.nodes`, or raise InvalidModelError."""
        skeleton, types = self._infer_corrected(facts)
        values_by_name = values_of(types.values())
        read = (tensor.name for tensor in skeleton.graph.initializer)
        values_by_name.update((name, constant_value(name, facts.constants[name])) for name in read)
        return values_by_name

    @_contradictions_told()
    def types(self, facts: InitialFacts) -> dict[str, onnx.ValueInfoProto]:
        """Return the types of `values()` as ValueInfoProto; constants that inference gets with contents are omitted."""
        return self._infer_corrected(facts)[1]

    def read_by(self, index: int) -> Sequence[str]:
        return tuple(dict.fromkeys(self._graph.nodes[index].reads))

    @_contradictions_told()
    def types_of_one(
        self,
        index: int,
        types: Mapping[str, onnx.ValueInfoProto],
        constants: Mapping[str, Array],
        *,
        states_inside: bool = True,
    ) -> dict[str, onnx.ValueInfoProto]:
        """Infer result types of a node from its inputs alone, or raise InvalidModelError.

        `states_inside` trusts shapes declared in subgraphs, which may hide inferable ones.
        """
        skeleton = self._empty(with_functions=self._calls_function(index))
        node = self._inferable_one(index)
        skeleton.graph.node.append(node if states_inside else without_inner_shapes(node))
        names = dict.fromkeys(self._graph.nodes[index].reads)
        skeleton.graph.input.extend(types[name] for name in names if name in types and name not in constants)
        add_constants(skeleton.graph, {name: constants[name] for name in names if name in constants})
        inferred_types = infer(skeleton)
        output_types = {
            name: inferred_types[name] for name in self._graph.nodes[index].outputs if name in inferred_types
        }
        return (
            {**output_types, **self._corrections(index, inferred_types, constants)}
            if index in self._doubted
            else output_types
        )

    def stated_of_one(
        self, index: int, values: Mapping[str, Value], constants: Mapping[str, Array], *, dynamic_shapes: bool = False
    ) -> dict[str, onnx.ValueInfoProto]:
        """Return result types of a node whose op onnx does not know; none for other nodes.

        Sources, in order: type rule (only for static shapes), body or converter, value infos.
        """
        node = self._read.nodes[index]
        rule = None if dynamic_shapes else self._rules.get((node.domain, node.op_type))
        is_described = is_further(node.domain, node.op_type, node.since_version)
        if rule is None and not is_described:
            return {}
        values_by_name = {name: values.get(name, Value(name)) for name in node.inputs if name}
        values_by_name.update(
            (name, constant_value(name, constants[name])) for name in values_by_name if name in constants
        )
        infos: dict[str, onnx.ValueInfoProto] = {}
        if rule is not None:
            input_values = [values_by_name.get(name) for name in node.inputs]
            version = node.since_version or self._read.opsets.get(node.domain, 1)
            infos = _infos(zip(node.outputs, rule(node, version, input_values) or (), strict=False))
        if is_described and not infos:
            infos = self._said_of_further(node, values_by_name, constants)
        return infos or self._written.types([name for name in node.outputs if name], values)

    def _said_of_further(
        self, node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]
    ) -> dict[str, onnx.ValueInfoProto]:
        if node.contradiction:
            return {}
        inputs = [values.get(name) for name in node.inputs]
        input_constants = {position: constants[name] for position, name in enumerate(node.inputs) if name in constants}
        try:
            body = body_of(node, inputs, input_constants)
        except Refusal:
            return {}
        if body is None:
            return _infos((self._read.operators.output_types(node, values, constants) or {}).items())
        output_names = (name for name in node.outputs if name)
        return {
            name: onnx.ValueInfoProto(name=name, type=info.type)
            for name, info in zip(output_names, body.types(inputs, input_constants), strict=False)
        }

    def agrees(self, facts: InitialFacts) -> bool:
        """Return whether strict inference finds no conflict in the model with these facts."""
        try:
            self._infer_corrected(facts, strict=True)
        except FAILURES as error:
            return _contradicts_no_shape(str(error))
        return True

    def _infer_corrected(
        self, facts: InitialFacts, *, strict: bool = False
    ) -> tuple[onnx.ModelProto, dict[str, onnx.ValueInfoProto]]:
        corrected: dict[int, Types] = {}
        while True:
            remaining_nodes = [index for index in facts.nodes if index not in corrected] if corrected else facts.nodes
            skeleton = self._skeleton(replace(facts, nodes=remaining_nodes))
            skeleton.graph.input.extend(info for infos in corrected.values() for info in infos.values())
            types = infer(skeleton, strict=strict)
            # A correction may change inputs of another doubted node, so all are checked again.
            doubted = self._doubted.intersection(facts.nodes) if self._doubted else ()
            wrong = {index: self._corrections(index, types, facts.constants) for index in doubted}
            # A correction may itself be no valid shape (a window larger than its input); stop when nothing changes.
            fresh = {index: infos for index, infos in wrong.items() if infos and infos != corrected.get(index)}
            if not fresh:
                return skeleton, types
            corrected.update(fresh)

    def _corrections(self, index: int, types: Types, constants: Mapping[str, Array]) -> Types:
        node = self._read.nodes[index]
        input_infos = [
            array_info(name, constants[name]) if name in constants else types.get(name) for name in node.inputs
        ]
        output_infos = {name: types[name] for name in node.outputs if name in types}
        inferred = {name: value_of(info).shape for name, info in output_infos.items()}
        true = true_shapes(node, [None if info is None else value_of(info).shape for info in input_infos], inferred)
        # The node is replaced as a whole, so correct results are included too.
        is_wrong = any(shape != inferred[name] for name, shape in true.items())
        return (
            {
                name: _shaped(output_infos[name], true[name]) if name in true else output_infos[name]
                for name in output_infos
            }
            if is_wrong
            else {}
        )

    def _skeleton(self, facts: InitialFacts) -> onnx.ModelProto:
        skeleton = self._empty(with_functions=True)
        graph = skeleton.graph
        graph.node.extend(self._inferable(facts.nodes))
        shapes = facts.shapes
        graph.input.extend(_shaped(info, shapes[info.name]) if info.name in shapes else info for info in self._inputs)
        read = (name for index in facts.nodes for name in self._graph.nodes[index].reads)
        add_constants(graph, {name: facts.constants[name] for name in read if name in facts.constants})
        produced_names = {name for index in facts.nodes for name in self._graph.nodes[index].outputs}
        graph.output.extend(
            facts.stated.get(value.name, value) for value in self._outputs if value.name in produced_names
        )
        outputs = {value.name for value in graph.output} if facts.stated else set()
        graph.value_info.extend(
            info for name, info in facts.stated.items() if name in produced_names and name not in outputs
        )
        return skeleton

    def _inferable(self, nodes: Sequence[int]) -> Iterable[onnx.NodeProto]:
        graph_nodes = self._graph.nodes
        protos: Sequence[onnx.NodeProto] = self._model.graph.node
        if len(nodes) == len(graph_nodes) and all(node.op_type not in _UNUSUAL for node in graph_nodes):
            return protos
        return (
            self._inferable_one(index) if graph_nodes[index].op_type in _UNUSUAL else protos[index] for index in nodes
        )

    def _inferable_one(self, index: int) -> onnx.NodeProto:
        node = self._read.nodes[index]
        proto: onnx.NodeProto = self._model.graph.node[index]
        if is_like_input(node.domain, node.op_type, node.since_version):
            return stand_in(proto)
        if node.domain:
            return proto
        return _with_default(proto, *_DEFAULTS[node.op_type]) if node.op_type in _DEFAULTS else proto

    def _empty(self, *, with_functions: bool) -> onnx.ModelProto:
        # Before IR version 4 initializers had to be inputs; here they are not.
        functions = self._model.functions if with_functions else ()
        return model_of(self._model, (), ir_version=onnx.IR_VERSION, functions=functions)

    def _calls_function(self, index: int) -> bool:
        node = self._model.graph.node[index]
        return key_of(node) in self._functions or holds_graph(node)  # a subgraph may call one


def _infos(types: Iterable[tuple[str, OperandType]]) -> dict[str, onnx.ValueInfoProto]:
    return {
        name: helper.make_tensor_value_info(name, ELEMENT_TYPE_OF_DTYPE[type_.dtype.value], type_.dimensions)
        for name, type_ in types
        if name
    }


def _with_default(node: onnx.NodeProto, name: str, value: int) -> onnx.NodeProto:
    if any(attribute.name == name for attribute in node.attribute):
        return node
    copy = copied(node)
    copy.attribute.append(helper.make_attribute(name, value))
    return copy


def _contradicts_no_shape(message: str) -> bool:
    failures = message.split(_FAILURE)[1:] or [message]
    return all(any(words in failure for words in _UNKNOWN) for failure in failures)


def _shaped(info: onnx.ValueInfoProto, dimensions: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    copy = copied(info)
    sizes = (
        onnx.TensorShapeProto.Dimension(dim_value=size)
        if isinstance(size, int)
        else onnx.TensorShapeProto.Dimension(dim_param=size)
        for size in dimensions
    )
    copy.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=sizes))
    return copy
