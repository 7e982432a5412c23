"""Axes and other small lists of integers, from attributes or constant inputs."""

from __future__ import annotations

from collections.abc import Iterable

from nnadapter.converters.context import ConversionContext
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


def constant_integers(context: ConversionContext, node: OnnxNode, position: int) -> tuple[int, ...] | None:
    """Return the integers of an input that must be constant, or None if it is absent.

    Raises:
        Refusal: it is not constant, or holds no integers.
    """
    return required_integers(context, node, position) if node.input(position) else None


def required_integers(context: ConversionContext, node: OnnxNode, position: int) -> tuple[int, ...]:
    """Return the integers of an input that must be there and constant.

    Raises:
        Refusal: it is absent, not constant, or holds no integers.
    """
    name = node.input(position)
    integers = context.integers(name)
    if integers is None:
        dtype = context.constant(name).dtype.name
        raise Refusal(Reason.INVALID_NODE, f"input {position} of {node.op_type} holds {dtype}; expected integers")
    return integers


def normalize_axis(node: OnnxNode, axis: int, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        Refusal: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise Refusal(
            Reason.INVALID_NODE, f"axis of {node.op_type} is {axis}; expected -{rank} to {rank - 1} for rank {rank}"
        )
    return axis + rank if axis < 0 else axis


def normalize_axes(node: OnnxNode, axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return axes counted from the front, in their order.

    Raises:
        Refusal: there is no such axis, or one is named twice.
    """
    normalized = tuple(normalize_axis(node, axis, rank) for axis in axes)
    if len(set(normalized)) != len(normalized):
        raise Refusal(Reason.INVALID_NODE, f"axes of {node.op_type} are {list(normalized)}; expected none twice")
    return normalized
