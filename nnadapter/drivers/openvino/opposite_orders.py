"""Transposes of the engine's model that undo each other around what is elementwise.

The engine moves one of them to the other, behind a convolution whose channels lie last in memory, and leaves both out
there; what lies in memory comes out in the order in which it lies. Seen with OpenVINO 2026.4 where an order is its own
inverse and moves the channels, with known sizes. They are left out before it sees them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.openvino.kept_shapes import _ORDER
from nnadapter.ir.operand import Array

_ELEMENTWISE = frozenset((
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceiling", "Clamp", "Convert", "Cos", "Cosh", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HSigmoid", "HSwish", "HardSigmoid", "Log", "Mish", "Negative", "Relu", "Round",
    "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "SoftPlus", "SoftSign", "Sqrt", "Swish", "Tan", "Tanh",
    "Add", "Divide", "FakeQuantize", "Maximum", "Minimum", "Multiply", "PRelu", "Power", "Subtract",
))  # fmt: skip


def leave_out_opposite_orders(model: Any) -> None:
    """Leave out each Transpose that undoes another one before elementwise operators of one input, with the other."""
    transposes = [operator for operator in model.get_ordered_ops() if operator.get_type_name() == "Transpose"]
    if any([_is_left_out(transpose) for transpose in transposes]):  # noqa: C419  all of them
        model.validate_nodes_and_infer_types()


def _is_left_out(last: Any) -> bool:
    """Leave out a Transpose that undoes another one, with that one, and say whether it does."""
    value, port = last.input_value(0), None
    while (input_port := _elementwise_input(value)) is not None:
        port, value = input_port, input_port.get_source_output()
    first = value.get_node()
    if port is None or first.get_type_name() != "Transpose":
        return False
    order, back = _order(first), _order(last)
    if order is None or back is None or not np.array_equal(order[back], np.arange(len(back))):
        return False
    last_input, last_output = last.input_value(0), last.output(0)
    port.replace_source_output(first.input_value(0))
    names = last_output.get_names()
    for reader in last_output.get_target_inputs():
        reader.replace_source_output(last_input)
    last_input.set_names(names)
    return True


def _elementwise_input(value: Any) -> Any:
    """The port from which an elementwise operator makes a value that nobody else reads; None of any other value."""
    node = value.get_node()
    if node.get_type_name() not in _ELEMENTWISE or len(value.get_target_inputs()) != 1:
        return None
    rank = value.get_partial_shape().rank
    computed = [port for port in node.inputs() if not _is_number(port.get_source_output())]
    is_alone = len(computed) == 1 and computed[0].get_partial_shape().rank == rank
    return computed[0] if is_alone else None


def _is_number(value: Any) -> bool:
    """Whether a value is a constant of one element."""
    node, shape = value.get_node(), value.get_partial_shape()
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant" and shape.is_static and int(np.prod(shape.to_shape())) == 1


def _order(transpose: Any) -> Array | None:
    source = transpose.input_value(_ORDER).get_node()
    order: Array | None = source.data.reshape(-1) if source.get_type_name() == "Constant" else None
    return order if order is not None and len(order) else None
