"""Guards against fusions: steps that keep the engine from replacing a composition by an operator that computes another.

The engine looks for norms, activations and attention that a model writes out. Several of its patterns assume that a
constant never enlarges the other operand, that reduced dimensions are retained, or that a gate reads no other value.
Seen with OpenVINO 2026.4. Compositions that meet these assumptions are left as they are, so that they stay fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module

_ARITHMETIC = frozenset((
    "Add", "Divide", "FloorMod", "Maximum", "Minimum", "Mod", "Multiply", "PRelu", "Power", "SquaredDifference",
    "Subtract",
))  # fmt: skip
_UNARY = frozenset((
    "Abs", "Ceiling", "Clamp", "Convert", "Elu", "Erf", "Exp", "Floor", "Gelu", "HSigmoid", "HSwish", "HardSigmoid",
    "Identity", "Log", "Mish", "Negative", "Relu", "Round", "Selu", "Sigmoid", "Sign", "SoftPlus", "SoftSign", "Sqrt",
    "Swish", "Tanh",
))  # fmt: skip
_ELEMENTWISE = _ARITHMETIC | _UNARY
_SIZES = frozenset(("i64", "u64"))
"""Data types of sizes, with which the engine computes shapes."""


def opaque(value: Any) -> Any:
    """Return a value after a step that changes nothing, and that no pattern of the engine contains: a Split of one part.

    A value without dimensions comes back as it is.
    """
    if value.get_partial_shape().rank == 0:
        return value
    operators = module().opset13
    parts = operators.constant(np.array([-1], np.int64))
    return operators.variadic_split(value, operators.constant(np.int64(0)), parts).output(0)


def _insert_opaque(value: Any) -> None:
    """Put an opaque step between a value and all that reads it."""
    readers, names = value.get_target_inputs(), value.get_names()
    step = opaque(value)
    if step == value:
        return
    for reader in readers:
        reader.replace_source_output(step)
    value.set_names(set())
    step.set_names(names)


def replace_casts(model: Any) -> None:
    """Remove each Convert to the type that its input has; one that is an output becomes an opaque step.

    The engine leaves the output of such a Convert unwritten if its input has other readers.
    """
    for operator in model.get_ordered_ops():
        if operator.get_type_name() != "Convert":
            continue
        source, result = operator.input_value(0), operator.output(0)
        if source.get_element_type() == result.get_element_type():
            readers, names = result.get_target_inputs(), result.get_names()
            is_output = any(each.get_node().get_type_name() == "Result" for each in readers)
            step = opaque(source) if is_output else source
            if step == source and is_output:
                continue
            for reader in readers:
                reader.replace_source_output(step)
            if is_output:
                result.set_names(set())
                step.set_names(names)


def broadcast_before_constants(model: Any) -> None:
    """Broadcast each operand that a constant enlarges, in dimensions or in sizes, before the two are combined.

    The engine takes such a constant for a single number, or drops it where it changes no number.
    """
    constants = set[str]()
    for operator in model.get_ordered_ops():
        inputs = operator.inputs()
        name = operator.get_name()
        if operator.get_type_name() == "Constant" or (
            inputs and all(each.get_source_output().get_node().get_name() in constants for each in inputs)
        ):
            constants.add(name)
        elif operator.get_type_name() in _ARITHMETIC and len(inputs) == 2:
            _broadcast_operand(operator, constants)


def _broadcast_operand(operator: Any, constants: set[str]) -> None:
    if operator.get_output_element_type(0).get_type_name() in _SIZES:
        return
    for port, other in (operator.inputs(), operator.inputs()[::-1]):
        source = other.get_source_output()
        if source.get_node().get_name() in constants and source.get_partial_shape().is_static:
            shape = source.get_shape()
            value = port.get_source_output()
            if _enlarges(shape, value.get_partial_shape()):
                operators = module().opset13
                target = operators.constant(np.array(shape, np.int64))
                larger = operators.broadcast(value, target, broadcast_spec="BIDIRECTIONAL")
                port.replace_source_output(opaque(larger.output(0)))


def _enlarges(constant: Any, shape: Any) -> bool:
    """Check whether a constant may give the result more dimensions or larger ones than a shape has."""
    if shape.rank.is_dynamic:
        return len(constant) > 0
    sizes = list(shape)
    if len(constant) > len(sizes):
        return True
    pairs = zip(reversed(constant), reversed(sizes), strict=False)
    return any(size > 1 and (other.is_dynamic or other.get_length() != size) for size, other in pairs)


def separate_reductions(model: Any) -> None:
    """Put an opaque step after each reduction that drops its dimensions and is read by elementwise operators.

    The engine takes it for one that retains them, and a norm or Softmax of it for one along these dimensions.
    """
    for operator in model.get_ordered_ops():
        if operator.get_type_name().startswith("Reduce") and not operator.get_attributes().get("keep_dims", True):
            readers = operator.output(0).get_target_inputs()
            if any(each.get_node().get_type_name() in _ELEMENTWISE for each in readers):
                _insert_opaque(operator.output(0))


def separate_gates(model: Any) -> None:
    """Put an opaque step after each computed operand that is combined with the result of attention.

    The engine ends the process if it takes the operand into attention, of which a further reader needs the result.
    """
    for operator in model.get_ordered_ops():
        if operator.get_type_name() == "MatMul" and _is_weighted(operator):
            for port in list(_gates(operator)):
                port.replace_source_output(opaque(port.get_source_output()))


def _is_weighted(product: Any) -> bool:
    """Check whether a product of matrices is of a Softmax, through elementwise operators."""
    pending, seen = [product.input_value(0).get_node()], set[str]()
    while pending:
        node = pending.pop()
        if node.get_type_name() == "Softmax":
            return True
        if node.get_type_name() in _ELEMENTWISE | {"Reshape"} and node.get_name() not in seen:
            seen.add(node.get_name())
            pending.extend(each.get_node() for each in node.input_values())
    return False


def _gates(product: Any) -> Iterator[Any]:
    """Yield the computed operands of elementwise operators after a product, if a value among these has several readers."""
    ports, value, is_shared = [], product.output(0), False
    while True:
        readers = [each.get_node() for each in value.get_target_inputs()]
        is_shared |= len(readers) > 1
        following = [each for each in value.get_target_inputs() if each.get_node().get_type_name() in _ELEMENTWISE]
        if not following:
            break
        for reader in following:
            others = [each for each in reader.get_node().inputs() if each.get_index() != reader.get_index()]
            ports += [each for each in others if each.get_source_output().get_node().get_type_name() in _ELEMENTWISE]
        value = following[0].get_node().output(0)
    if is_shared:
        yield from ports


GUARDS: Mapping[str, Callable[[Any], None]] = {
    "casts to the same type": replace_casts,
    "constants that enlarge": broadcast_before_constants,
    "reductions that drop dimensions": separate_reductions,
    "gates of attention": separate_gates,
}
"""Guards of every model, by the composition that they are for, in this order."""
