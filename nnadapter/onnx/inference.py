"""Shapes and types of every value, by onnx's own inference over a skeleton of the model without its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import onnx
from onnx import helper, numpy_helper, shape_inference

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.operators import TypeRule
from nnadapter.onnx.values import value_of, values_of
from nnadapter.onnx.written_types import Written
from partition.dtypes import ELEMENT_TYPE_OF_DTYPE, ITEMSIZE_OF_DTYPE
from partition.graph import Graph, Value

_STAND_INS = {"GroupNormalization": "Identity", "MeanVarianceNormalization": "Identity"}
"""Ops that inference knows nothing of, and ops whose first result has the same type."""
_DEFAULTS = {"STFT": ("onesided", 1)}
"""Ops of which inference takes another default than their schema gives, and the schema's."""
_UNUSUAL = _STAND_INS.keys() | _DEFAULTS.keys()
SMALL_ELEMENTS = 1024
"""Constants of at most so many elements are given to inference with their contents: shapes, axes, sizes."""
Types = Mapping[str, onnx.ValueInfoProto]
"""What is known of values, by name."""
_NOTHING: Types = MappingProxyType({})


class Inference:
    """Infers the values of one model again and again, for other input shapes and other known constants.

    Args:
        model: the model.
        graph: the same.
        nodes: of the graph, attributes read; needed with `rules`.
        rules: by domain and op type, what is known of ops beside what onnx knows.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        graph: Graph,
        nodes: Sequence[OnnxNode] = (),
        rules: Mapping[tuple[str, str], TypeRule] = MappingProxyType({}),
    ) -> None:
        self._graph = graph
        self._model = model
        self._nodes = nodes
        self.rules = rules
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._functions = frozenset((function.domain, function.name) for function in model.functions)
        inputs = frozenset(graph.inputs)
        self._inputs = [value for value in model.graph.input if value.name in inputs]
        self._outputs = [_without_shape(value) for value in model.graph.output]
        self._written = Written(model)

    @property
    def has_rules(self) -> bool:
        """Whether a rule is for some node of the model."""
        return bool(self.rules) and any((node.domain, node.op_type) in self.rules for node in self._nodes)

    def states_already(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the model itself gives its inputs these shapes."""
        return all(value_of(value).static_shape == shapes[value.name] for value in self._inputs if value.name in shapes)

    def values(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        constants: Mapping[str, Array],
        nodes: Sequence[int],
        stated: Types = _NOTHING,
    ) -> dict[str, Value]:
        """Return what is known of every value that `nodes` (positions, ascending) read or make.

        Args:
            shapes: dimensions of model inputs; an input that is not named keeps what the model says of it.
            constants: every value whose contents are known.
            nodes: the nodes that are left to run.
            stated: what rules say of values, which nothing else says.

        Raises:
            InvalidModelError: types contradict each other.
        """
        graph = _inferred(self._skeleton(shapes, constants, nodes, stated))
        found = values_of(value for group in (graph.input, graph.value_info, graph.output) for value in group)
        found.update((tensor.name, constant_value(tensor.name, constants[tensor.name])) for tensor in graph.initializer)
        return found

    def types(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        constants: Mapping[str, Array],
        nodes: Sequence[int],
        stated: Types = _NOTHING,
    ) -> dict[str, onnx.ValueInfoProto]:
        """Return the same as `values`, as onnx says it and without the constants whose contents inference was given."""
        graph = _inferred(self._skeleton(shapes, constants, nodes, stated))
        return {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}

    def types_of_one(
        self, index: int, types: Mapping[str, onnx.ValueInfoProto], constants: Mapping[str, Array]
    ) -> dict[str, onnx.ValueInfoProto]:
        """Return what is known of the results of the node at `index`, by what is known of its inputs alone.

        Args:
            index: the node's position.
            types: what is known of values; a name may be missing.
            constants: every value whose contents are known.

        Raises:
            InvalidModelError: types contradict each other.
        """
        skeleton = self._empty(with_functions=self._calls_function(index))
        skeleton.graph.node.append(_inferable(self._model.graph.node[index]))
        names = dict.fromkeys(self._graph.nodes[index].reads)
        skeleton.graph.input.extend(types[name] for name in names if name in types and name not in constants)
        _add_constants(skeleton.graph, [name for name in names if name in constants], constants)
        return {value.name: value for value in _inferred(skeleton).value_info}

    def stated_of_one(
        self, index: int, values: Mapping[str, Value], constants: Mapping[str, Array]
    ) -> dict[str, onnx.ValueInfoProto]:
        """Return what a rule says of the results of the node at `index`, or the model; nothing where no rule is for it.

        Args:
            index: the node's position.
            values: what is known of values; a name may be missing.
            constants: every value whose contents are known.
        """
        node = self._nodes[index] if self.rules else None
        rule = None if node is None else self.rules.get((node.domain, node.op_type))
        if node is None or rule is None:
            return {}
        given = [
            constant_value(name, constants[name])
            if name in constants
            else values.get(name, Value(name))
            if name
            else None
            for name in node.inputs
        ]
        found = rule(node, node.since_version or self._opsets.get(node.domain, 1), given)
        if found is None:
            return self._written.types([name for name in node.outputs if name], values)
        return {
            name: helper.make_tensor_value_info(name, ELEMENT_TYPE_OF_DTYPE[type_.dtype.value], type_.dimensions)
            for name, type_ in zip(node.outputs, found, strict=False)
            if name
        }

    def agrees(
        self, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array], nodes: Sequence[int]
    ) -> bool:
        """Whether nothing in `nodes` contradicts these input shapes, as far as inference can tell."""
        skeleton = self._skeleton(shapes, constants, nodes)
        try:
            shape_inference.infer_shapes(skeleton, strict_mode=True, data_prop=True)
        except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError) as error:
            return _is_not_about_shapes(str(error))
        return True

    def _skeleton(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        constants: Mapping[str, Array],
        nodes: Sequence[int],
        stated: Types = _NOTHING,
    ) -> onnx.ModelProto:
        skeleton = self._empty(with_functions=True)
        graph = skeleton.graph
        graph.node.extend(self._inferable(nodes))
        for value in self._inputs:
            graph.input.append(value)
            if value.name in shapes:
                _set_shape(graph.input[-1], shapes[value.name])
        read = dict.fromkeys(name for index in nodes for name in self._graph.nodes[index].reads if name in constants)
        _add_constants(graph, read, constants)
        made = {name for index in nodes for name in self._graph.nodes[index].outputs}
        graph.output.extend(stated.get(value.name, value) for value in self._outputs if value.name in made)
        outputs = {value.name for value in graph.output} if stated else set()
        graph.value_info.extend(info for name, info in stated.items() if name in made and name not in outputs)
        return skeleton

    def _inferable(self, nodes: Sequence[int]) -> Iterable[onnx.NodeProto]:
        """The nodes, those of which inference knows nothing, or the wrong default, as ones that it knows."""
        own = self._graph.nodes
        protos: Sequence[onnx.NodeProto] = self._model.graph.node
        if len(nodes) == len(own) and all(node.op_type not in _UNUSUAL for node in own):
            return protos
        return (_inferable(protos[index]) if own[index].op_type in _UNUSUAL else protos[index] for index in nodes)

    def _empty(self, *, with_functions: bool) -> onnx.ModelProto:
        # Before IR version 4 every initializer had to be an input; here they are not.
        skeleton = onnx.ModelProto(ir_version=onnx.IR_VERSION, opset_import=self._model.opset_import)
        if with_functions:
            skeleton.functions.extend(self._model.functions)
        skeleton.graph.name = "skeleton"
        return skeleton

    def _calls_function(self, index: int) -> bool:
        node = self._model.graph.node[index]
        # A node that holds graphs may call one in there.
        holds_graph = any(attribute.HasField("g") for attribute in node.attribute)
        return holds_graph or (node.domain, node.op_type) in self._functions


def _inferred(skeleton: onnx.ModelProto) -> onnx.GraphProto:
    try:
        return shape_inference.infer_shapes(skeleton, data_prop=True).graph
    except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        raise InvalidModelError(
            f"the model contradicts itself: {' '.join(str(error).split())}; export it again"
        ) from error


def _add_constants(graph: onnx.GraphProto, names: Iterable[str], constants: Mapping[str, Array]) -> None:
    for name in names:
        array = constants[name]
        if array.size <= SMALL_ELEMENTS and array.dtype != object:
            graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            graph.input.append(_typed(name, array))


def _inferable(node: onnx.NodeProto) -> onnx.NodeProto:
    if node.domain:
        return node
    stand_in = _STAND_INS.get(node.op_type)
    if stand_in is not None:
        return helper.make_node(stand_in, node.input[:1], node.output[:1])
    return _with_default(node, *_DEFAULTS[node.op_type]) if node.op_type in _DEFAULTS else node


def _with_default(node: onnx.NodeProto, name: str, value: int) -> onnx.NodeProto:
    if any(attribute.name == name for attribute in node.attribute):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.attribute.append(helper.make_attribute(name, value))
    return copy


def _is_not_about_shapes(message: str) -> bool:
    # Strict inference also refuses operators it does not know; that says nothing about sizes.
    return "No Op registered" in message or "No Schema registered" in message


def constant_value(name: str, array: Array) -> Value:
    """What is known of a value whose contents are known."""
    if array.dtype == object:
        return Value(name, "string", array.shape)
    return Value(name, array.dtype.name, array.shape, ITEMSIZE_OF_DTYPE[array.dtype.name])


def _typed(name: str, array: Array) -> onnx.ValueInfoProto:
    element = onnx.TensorProto.STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, element, array.shape)


def _set_shape(value: onnx.ValueInfoProto, dimensions: Sequence[int]) -> None:
    shape = value.type.tensor_type.shape
    del shape.dim[:]
    for dimension in dimensions:
        shape.dim.add().dim_value = dimension


def _without_shape(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    # What a model says of its outputs' shapes is often a name or -1, and would hide what can be inferred.
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    if copy.type.HasField("tensor_type"):
        copy.type.tensor_type.ClearField("shape")
    return copy
