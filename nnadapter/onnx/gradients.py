"""`Gradient` gives way to the nodes that compute it, where every step between is one that is known here.

Source: Gradient-1 of ai.onnx.preview.training. Reverse accumulation: from y back to the xs, each node hands what comes
in at its output on to its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

import onnx
from onnx import helper, shape_inference

from nnadapter.onnx.graphs import node_names
from nnadapter.onnx.values import value_of
from partition.dtypes import ELEMENT_TYPE_OF_DTYPE
from partition.graph import Value

_DOMAIN = "ai.onnx.preview.training"
Emit = Callable[..., str]
"""Adds a node of an op type that reads some values, and gives the name of its result."""
Rule = Callable[[Emit, str, Sequence[str], str], Sequence[str]]
"""(emit, what came in at the output, inputs, output) -> what goes on to each input."""


def _product(emit: Emit, given: str, inputs: Sequence[str], output: str) -> Sequence[str]:
    return emit("Mul", given, inputs[1]), emit("Mul", given, inputs[0])


def _quotient(emit: Emit, given: str, inputs: Sequence[str], output: str) -> Sequence[str]:
    part = emit("Div", given, inputs[1])
    return part, emit("Neg", emit("Mul", part, output))


def _hyperbolic(emit: Emit, given: str, inputs: Sequence[str], output: str) -> Sequence[str]:
    return (emit("Sub", given, emit("Mul", given, emit("Mul", output, output))),)


def _logistic(emit: Emit, given: str, inputs: Sequence[str], output: str) -> Sequence[str]:
    part = emit("Mul", given, output)
    return (emit("Sub", part, emit("Mul", part, output)),)


_RULES: Mapping[str, Rule] = {
    "Add": lambda emit, given, inputs, output: (given, given),
    "Cos": lambda emit, given, inputs, output: (emit("Neg", emit("Mul", given, emit("Sin", inputs[0]))),),
    "Div": _quotient,
    "Exp": lambda emit, given, inputs, output: (emit("Mul", given, output),),
    "Identity": lambda emit, given, inputs, output: (given,),
    "Log": lambda emit, given, inputs, output: (emit("Div", given, inputs[0]),),
    "Mul": _product,
    "Neg": lambda emit, given, inputs, output: (emit("Neg", given),),
    "Relu": lambda emit, given, inputs, output: (emit("Mul", given, emit("Sign", output)),),
    "Sigmoid": _logistic,
    "Sin": lambda emit, given, inputs, output: (emit("Mul", given, emit("Cos", inputs[0])),),
    "Sqrt": lambda emit, given, inputs, output: (emit("Div", given, emit("Add", output, output)),),
    "Sub": lambda emit, given, inputs, output: (given, emit("Neg", given)),
    "Tanh": _hyperbolic,
}
"""Derivatives of ops that work element by element."""


def expand_gradients(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with its `Gradient` nodes expanded; the same object where none is.

    1. The node must be given the xs (and zs) that it names, so that it is about this graph and no other.
    2. Between them and y every op must have a rule, and work on values of one known shape: nothing is broadcast.
    3. A node that does not fit stays, and no device takes it.
    """
    found = [position for position, node in enumerate(model.graph.node) if _is_gradient(node)]
    if not found:
        return model
    values = _values(model)
    names = node_names(model)
    nodes: list[onnx.NodeProto] = []
    for position, node in enumerate(model.graph.node):
        expanded = _expanded(model, node, names[position], values) if position in found else None
        nodes.extend([node] if expanded is None else expanded)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def _is_gradient(node: onnx.NodeProto) -> bool:
    return node.op_type == "Gradient" and node.domain == _DOMAIN


def _values(model: onnx.ModelProto) -> Mapping[str, Value]:
    try:
        graph = shape_inference.infer_shapes(model).graph
    except (shape_inference.InferenceError, ValueError, RuntimeError):
        graph = model.graph
    return {info.name: value_of(info) for info in (*graph.value_info, *graph.output, *graph.input)}


def _expanded(
    model: onnx.ModelProto, node: onnx.NodeProto, name: str, values: Mapping[str, Value]
) -> list[onnx.NodeProto] | None:
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    xs = [x.decode() for x in attributes.get("xs", ())]
    y = attributes.get("y", b"").decode()
    if list(node.input) != [*xs, *(z.decode() for z in attributes.get("zs", ()))] or y not in values:
        return None
    behind = _behind(model.graph, y, set(node.input))
    if not all(_has_rule(each, values) for each in behind):
        return None
    made: list[onnx.NodeProto] = []
    numbers = count()

    def emit(op_type: str, *inputs: str, **given: onnx.TensorProto) -> str:
        result = f"{name}/{op_type}_{next(numbers)}"
        made.append(helper.make_node(op_type, inputs, [result], result, **given))
        return result

    arrived = {y: _filled(emit, y, values[y], 1)}
    for each in behind:
        if each.output[0] not in arrived:
            continue
        handed_on = _RULES[each.op_type](emit, arrived[each.output[0]], each.input, each.output[0])
        for source, part in zip(each.input, handed_on, strict=True):
            arrived[source] = emit("Add", arrived[source], part) if source in arrived else part
    for x, output in zip(xs, node.output, strict=False):
        result = arrived.get(x) or _filled(emit, x, values[x], 0)
        made.append(helper.make_node("Identity", [result], [output], f"{name}/{output}"))
    return made


def _behind(graph: onnx.GraphProto, y: str, inputs: set[str]) -> list[onnx.NodeProto]:
    """The nodes between `inputs` and `y`, the last one first."""
    needed, found = {y}, []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output) and inputs.isdisjoint(node.output):
            needed.update(node.input)
            found.append(node)
    return found


def _has_rule(node: onnx.NodeProto, values: Mapping[str, Value]) -> bool:
    if node.op_type not in _RULES or node.domain not in ("", "ai.onnx"):
        return False
    shapes = [values[name].static_shape if name in values else None for name in (*node.input, *node.output)]
    return shapes[0] is not None and all(shape == shapes[0] for shape in shapes)


def _filled(emit: Emit, name: str, value: Value, number: int) -> str:
    element = ELEMENT_TYPE_OF_DTYPE[value.dtype or "float32"]
    return emit("ConstantOfShape", emit("Shape", name), value=helper.make_tensor("value", element, [1], [number]))
