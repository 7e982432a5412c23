"""Shapes and types of every value, by onnx's own inference over a skeleton of the model without its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper, numpy_helper, shape_inference

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array
from partition.graph import Graph, Value
from partition.onnx_io import value_of

_STAND_INS = {"GroupNormalization": "Identity"}
"""Ops that inference knows nothing of, and ops whose first result has the same type."""
SMALL_ELEMENTS = 1024
"""Constants of at most so many elements are given to inference with their contents: shapes, axes, sizes."""


class Inference:
    """Infers the values of one model again and again, for other input shapes and other known constants."""

    def __init__(self, model: onnx.ModelProto, graph: Graph) -> None:
        self._graph = graph
        self._model = model
        inputs = frozenset(graph.inputs)
        self._inputs = [value for value in model.graph.input if value.name in inputs]
        self._outputs = [_without_shape(value) for value in model.graph.output]

    def values(
        self, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array], nodes: Sequence[int]
    ) -> dict[str, Value]:
        """Return what is known of every value that `nodes` (positions, ascending) read or make.

        Args:
            shapes: dimensions of model inputs; an input that is not named keeps what the model says of it.
            constants: every value whose contents are known.
            nodes: the nodes that are left to run.

        Raises:
            InvalidModelError: types contradict each other.
        """
        skeleton = self._skeleton(shapes, constants, nodes)
        try:
            inferred = shape_inference.infer_shapes(skeleton, data_prop=True)
        except (shape_inference.InferenceError, ValueError, RuntimeError) as error:
            raise InvalidModelError(
                f"the model contradicts itself: {' '.join(str(error).split())}; export it again"
            ) from error
        graph = inferred.graph
        found = {value.name: value_of(value) for value in (*graph.input, *graph.value_info, *graph.output)}
        found.update((tensor.name, constant_value(tensor.name, constants[tensor.name])) for tensor in graph.initializer)
        return found

    def agrees(
        self, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array], nodes: Sequence[int]
    ) -> bool:
        """Whether nothing in `nodes` contradicts these input shapes, as far as inference can tell."""
        skeleton = self._skeleton(shapes, constants, nodes)
        try:
            shape_inference.infer_shapes(skeleton, strict_mode=True, data_prop=True)
        except (shape_inference.InferenceError, ValueError, RuntimeError) as error:
            return _is_not_about_shapes(str(error))
        return True

    def _skeleton(
        self, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array], nodes: Sequence[int]
    ) -> onnx.ModelProto:
        model = self._model
        # Before IR version 4 every initialiser had to be an input; here they are not.
        skeleton = onnx.ModelProto(ir_version=onnx.IR_VERSION, opset_import=model.opset_import)
        skeleton.functions.extend(model.functions)
        graph = skeleton.graph
        graph.name = "skeleton"
        graph.node.extend(_inferable(model.graph.node[index]) for index in nodes)
        for value in self._inputs:
            graph.input.append(value)
            if value.name in shapes:
                _set_shape(graph.input[-1], shapes[value.name])
        read = dict.fromkeys(name for index in nodes for name in self._graph.nodes[index].reads if name in constants)
        for name in read:
            array = constants[name]
            if array.size <= SMALL_ELEMENTS and array.dtype != object:
                graph.initializer.append(numpy_helper.from_array(array, name))
            else:
                graph.input.append(_typed(name, array))
        made = {name for index in nodes for name in self._graph.nodes[index].outputs}
        graph.output.extend(value for value in self._outputs if value.name in made)
        return skeleton


def _inferable(node: onnx.NodeProto) -> onnx.NodeProto:
    stand_in = None if node.domain else _STAND_INS.get(node.op_type)
    return node if stand_in is None else helper.make_node(stand_in, node.input[:1], node.output[:1])


def _is_not_about_shapes(message: str) -> bool:
    # Strict inference also refuses operators it does not know; that says nothing about sizes.
    return "No Op registered" in message or "No Schema registered" in message


def constant_value(name: str, array: Array) -> Value:
    """What is known of a value whose contents are known."""
    if array.dtype == object:
        return Value(name, "string", array.shape)
    return Value(name, array.dtype.name, array.shape, _itemsize(array))


def _itemsize(array: Array) -> float:
    return 0.5 if array.dtype.name in ("int4", "uint4") else array.dtype.itemsize


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
