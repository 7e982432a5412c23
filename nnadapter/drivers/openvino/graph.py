"""Edits of the engine's models that workarounds share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.ir.operand import Array

Operators = Sequence[tuple[str, Any]]


def kind_of(value: Any) -> str:
    """Return the type name of the operator that computes a value, such as `MatMul`."""
    return str(value.get_node().get_type_name())


def element_type(value: Any) -> str:
    """Return the engine's name of a value's data type, such as `f32`."""
    return str(value.get_element_type().get_type_name())


def readers_of(value: Any) -> list[Any]:
    """Return the operators that read a value."""
    return [port.get_node() for port in value.get_target_inputs()]


def upstream(operator: Any, followed: Collection[str], limit: float = inf) -> Iterator[Any]:
    """Yield an operator and its predecessors, searching only through `limit` operators of the types `followed`."""
    pending, visited = [operator], set[str]()
    while pending:
        node = pending.pop()
        yield node
        if node.get_type_name() in followed and node.get_name() not in visited and len(visited) <= limit:
            visited.add(node.get_name())
            pending.extend(source.get_node() for source in node.input_values())


def is_constant(value: Any) -> bool:
    """Check whether a value is a constant."""
    return kind_of(value) == "Constant"


def data_of(value: Any) -> Array | None:
    """Return the contents of a constant; None for computed values."""
    contents: Array | None = value.get_node().data if is_constant(value) else None
    return contents


def is_finite(value: Any) -> bool:
    """Check whether a value is a constant of finite numbers."""
    return is_constant(value) and bool(np.isfinite(value.get_node().data).all())


def parted(value: Any) -> Any:
    """Return max(-inf, value), across which the engine neither moves nor fuses operators."""
    operators = module().opset13
    least = np.array(-np.inf, value.get_element_type().to_dtype())
    return operators.maximum(operators.constant(least), value).output(0)  # for NaN the result is the second input


def opaque(value: Any) -> Any:
    """Return a value after a Split into one part, which no pattern of the engine matches."""
    operators = module().opset13
    first, parts = operators.constant(np.int64(0)), operators.constant(np.array([-1], np.int64))
    if value.get_partial_shape().rank != 0:
        return operators.variadic_split(value, first, parts).output(0)
    vector = operators.unsqueeze(value, first)
    return operators.squeeze(operators.variadic_split(vector, first, parts).output(0), first).output(0)


def part(port: Any, step_of: Callable[[Any], Any] = parted) -> None:
    """Insert the operator `step_of(source)` before an input."""
    port.replace_source_output(step_of(port.get_source_output()))


def insert(value: Any, step_of: Callable[[Any], Any] = opaque) -> None:
    """Insert the operator `step_of(value)` between a value and its readers."""
    readers = value.get_target_inputs()
    replace(value, step_of(value), readers)


def replace(value: Any, step: Any, readers: Any = None) -> None:
    """Connect `readers` of a value (by default all) to `step`, which also gets the value's names."""
    names = value.get_names()
    for reader in value.get_target_inputs() if readers is None else readers:
        reader.replace_source_output(step)
    value.set_names(set())
    step.set_names(names)


def replace_operator(operator: Any, replacement: Any) -> None:
    """Replace an operator with one output; the replacement gets the operator's names."""
    replacement.set_friendly_name(operator.get_friendly_name())
    replace(operator.output(0), replacement.output(0))
