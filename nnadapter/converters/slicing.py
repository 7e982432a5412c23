"""Putting tensors together, cutting them, and padding them."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.converters.axes import constant_integers, normalize_axes, normalize_axis, required_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.ir.operand import Array
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.tracing import greatest, least
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


@converter("Concat", 4, 11, 13)
def convert_concat(context: ConversionContext, node: OnnxNode) -> None:
    """Concat; parts without elements (a cache at its start) are left out. Source: ONNX Concat-13."""
    axis = normalize_axis(node, node.integer("axis"), len(context.dimensions(node.input(0))))
    parts = parts_with_elements(context, node.inputs, axis) or node.inputs
    context.add("CONCAT", tuple(map(context.operand, parts)), {"axis": axis}, node.outputs)


def parts_with_elements(context: ConversionContext, names: Sequence[str], axis: int) -> list[str]:
    """Return those of the parts of a concatenation that have elements along its axis."""
    return [name for name in names if context.dimensions(name)[axis] != 0]


@converter("Split", 2, 11)
def convert_split_attribute(context: ConversionContext, node: OnnxNode) -> None:
    """Split with its sizes in an attribute. Source: ONNX Split-11."""
    _split(context, node, node.integers("split"))


@converter("Split", 13)
def convert_split(context: ConversionContext, node: OnnxNode) -> None:
    """Split with its sizes in an optional, constant input. Source: ONNX Split-13."""
    _split(context, node, constant_integers(context, node, 1))


@converter("Split", 18)
def convert_split_with_count(context: ConversionContext, node: OnnxNode) -> None:
    """Split by sizes or into `num_outputs` parts, of which the last may be smaller. Source: ONNX Split-18."""
    sizes = constant_integers(context, node, 1)
    count = node.integer("num_outputs", len(node.outputs))
    if count < 1:
        raise Refusal(Reason.INVALID_NODE, f"attribute 'num_outputs' of Split is {count}; expected 1 or more")
    if sizes is None:
        size = _split_size(context, node)
        part = -(-size // count)
        sizes = (part,) * (count - 1) + (size - part * (count - 1),)
    _split(context, node, sizes)


def _split_size(context: ConversionContext, node: OnnxNode) -> int:
    dimensions = context.dimensions(node.input(0))
    return dimensions[normalize_axis(node, node.integer("axis", 0), len(dimensions))]


def _split(context: ConversionContext, node: OnnxNode, sizes: tuple[int, ...] | None) -> None:
    """Without sizes the parts are equal."""
    count, size = len(node.outputs), _split_size(context, node)
    if sizes is None:
        if size % count:
            raise Refusal(Reason.INVALID_NODE, f"Split cuts {size} elements into {count} equal parts; they do not fit")
        sizes = (size // count,) * count
    if len(sizes) != count:
        raise Refusal(Reason.INVALID_NODE, f"Split has sizes {list(sizes)} for {count} outputs; expected as many")
    axis = normalize_axis(node, node.integer("axis", 0), len(context.dimensions(node.input(0))))
    context.add("SPLIT", (context.operand(node.input(0)),), {"axis": axis, "split": sizes}, node.outputs)


@converter("Slice", 1)
def convert_slice_attributes(context: ConversionContext, node: OnnxNode) -> None:
    """Slice with everything in attributes, and no steps. Source: ONNX Slice-1."""
    starts, ends = node.integers("starts"), node.integers("ends")
    if starts is None or ends is None:
        raise Refusal(Reason.INVALID_NODE, "attributes 'starts' and 'ends' of Slice must both be there")
    _slice(context, node, starts, ends, node.integers("axes"), None)


@converter("Slice", 10, 11, 13)
def convert_slice(context: ConversionContext, node: OnnxNode) -> None:
    """Slice with everything in constant inputs. Source: ONNX Slice-13."""
    starts, ends = required_integers(context, node, 1), required_integers(context, node, 2)
    _slice(context, node, starts, ends, constant_integers(context, node, 3), constant_integers(context, node, 4))


def _slice(
    context: ConversionContext,
    node: OnnxNode,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] | None,
    steps: tuple[int, ...] | None,
) -> None:
    dimensions = context.dimensions(node.input(0))
    axes = normalize_axes(node, range(len(starts)) if axes is None else axes, len(dimensions))
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Refusal(
            Reason.INVALID_NODE,
            f"Slice has starts {list(starts)}, ends {list(ends)}, axes {list(axes)}, steps {list(steps)}; "
            "expected lists of one length and no step of 0",
        )
    spans = [
        resolve_slice(dimensions[axis], start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    ]
    attributes: dict[str, AttributeValue] = {
        "starts": tuple(start for start, _ in spans),
        "ends": tuple(end for _, end in spans),
        "axes": axes,
        "steps": steps,
    }
    context.add("SLICE", (context.operand(node.input(0)),), attributes, node.outputs)


def resolve_slice(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Return a start and an end for which Python's slice of an axis of `size` elements is what ONNX means.

    1. Negative values count from the end of the axis.
    2. What lies outside the axis is moved to its nearer border; backwards that border may lie before the first
       element, which is written as `-(size + 1)`.

    Source: ONNX Slice-13.
    """
    start, end = (value + size if value < 0 else value for value in (start, end))
    if step > 0:
        return least(greatest(start, 0), size), least(greatest(end, 0), size)
    if size == 0:
        return 0, 0
    end = least(greatest(end, -1), size - 1)
    return least(greatest(start, 0), size - 1), -(size + 1) if end == -1 else end


@converter("Pad", 2)
def convert_pad_attributes(context: ConversionContext, node: OnnxNode) -> None:
    """Pad with everything in attributes. Source: ONNX Pad-2."""
    _pad(context, node, node.integers("pads") or (), node.number("value", 0.0))


@converter("Pad", 11, 13, 18, 19, 21, 23, 24, 25)
def convert_pad(context: ConversionContext, node: OnnxNode) -> None:
    """Pad with everything in constant inputs; axes exist since version 18, mode wrap since 19. Source: ONNX Pad-19."""
    rank = len(context.dimensions(node.input(0)))
    pads, axes = required_integers(context, node, 1), constant_integers(context, node, 3)
    if axes is not None:
        pads = _spread_pads(node, pads, normalize_axes(node, axes, rank), rank)
    _pad(context, node, pads, _fill(context.optional_constant(node, 2)))


def _spread_pads(node: OnnxNode, pads: Sequence[int], axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return pads of all axes from those of some; pads = [begin of every axis…, end of every axis…]."""
    if len(pads) != 2 * len(axes):
        raise Refusal(Reason.INVALID_NODE, f"Pad has pads {list(pads)} for axes {list(axes)}; expected two per axis")
    complete = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        complete[axis], complete[rank + axis] = pads[position], pads[len(axes) + position]
    return tuple(complete)


def _fill(value: Array | None) -> float:
    if value is None or value.size == 0:
        return 0.0
    fill = float(value.reshape(-1)[0])
    if value.dtype.kind in "iu" and int(fill) != int(value.reshape(-1)[0]):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"input 'constant_value' of Pad is {value}; expected one that float64 can hold",
        )
    return fill


def _pad(context: ConversionContext, node: OnnxNode, pads: tuple[int, ...], value: float) -> None:
    attributes: dict[str, AttributeValue] = {"mode": node.text("mode", "constant"), "pads": pads, "value": value}
    context.add("PAD", (context.operand(node.input(0)),), attributes, node.outputs)
