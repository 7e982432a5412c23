"""Axes and other small lists of integers, from attributes or constant inputs."""

from __future__ import annotations

from collections.abc import Iterable

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.node import OnnxNode
from nnadapter.converters.refusal import Refusal
from nnadapter.ir.operand import Array
from partition.verdict import Reason


def constant_integers(context: ConversionContext, node: OnnxNode, position: int) -> tuple[int, ...] | None:
    """Return the integers of an input that must be constant, or None if it is absent.

    Raises:
        Refusal: it is not constant, or holds no integers.
    """
    array = context.optional_constant(node, position)
    return None if array is None else integers_of(node, position, array)


def required_integers(context: ConversionContext, node: OnnxNode, position: int) -> tuple[int, ...]:
    """Return the integers of an input that must be there and constant.

    Raises:
        Refusal: it is absent, not constant, or holds no integers.
    """
    return integers_of(node, position, context.constant(node.input(position)))


def integers_of(node: OnnxNode, position: int, array: Array) -> tuple[int, ...]:
    """Return the elements of a constant input as Python integers.

    Raises:
        Refusal: they are no integers.
    """
    if array.dtype.kind not in "iu":
        raise Refusal(
            Reason.INVALID_NODE, f"input {position} of {node.op_type} holds {array.dtype.name}; expected integers"
        )
    return tuple(array.reshape(-1).tolist())


def normalise_axis(node: OnnxNode, axis: int, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        Refusal: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise Refusal(
            Reason.INVALID_NODE, f"axis of {node.op_type} is {axis}; expected -{rank} to {rank - 1} for rank {rank}"
        )
    return axis + rank if axis < 0 else axis


def normalise_axes(node: OnnxNode, axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return axes counted from the front, in their order.

    Raises:
        Refusal: there is no such axis, or one is named twice.
    """
    normalised = tuple(normalise_axis(node, axis, rank) for axis in axes)
    if len(set(normalised)) != len(normalised):
        raise Refusal(Reason.INVALID_NODE, f"axes of {node.op_type} are {list(normalised)}; expected none twice")
    return normalised
