"""Converters of gathering, OneHot, Slice and Pad."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.converters.context import ConversionContext, invalid, normalize_axes, normalize_axis
from nnadapter.converters.registry import NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir import Array, DataType
from nnadapter.ir.symbolic_numbers import symbolic_max, symbolic_min


@converter("OneHot", 9, 11, 28)
def convert_one_hot(context: ConversionContext, node: OnnxNode) -> None:
    """Convert OneHot, with constant depth, to ONE_HOT.

    Negative indices count from the end, as in ONNX Runtime; ONNX defines that since 11 only.
    """
    axis = normalize_axis(node, node.integer("axis", -1), context.rank(node) + 1)
    inputs = (context.operand(node.input(0)), context.operand(node.input(2)))
    context.add("ONE_HOT", inputs, {"axis": axis, "depth": _depth(context, node)}, node.outputs)


def _depth(context: ConversionContext, node: OnnxNode) -> int:
    name = node.input(1)
    values = context.integers(name)
    if values is None:
        array = context.constant(name).reshape(-1)
        values = tuple(int(value) for value in array[np.isfinite(array)])
    if len(values) != 1:
        raise invalid(f"input 'depth' of OneHot is {list(values)}; expected one number")
    return values[0]


@converter("Slice", 1, 10, 11, 13)
def convert_slice(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Slice, with constant inputs, to SLICE."""
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = (
        context.attribute_or_input(node, name, position) for position, name in enumerate(names, 1)
    )
    if starts is None or ends is None:
        raise invalid("Slice lacks 'starts' or 'ends'; expected both")
    dimensions = context.dimensions(node.input(0))
    axes = normalize_axes(node, range(len(starts)) if axes is None else axes, len(dimensions))
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise invalid(
            f"Slice has starts {list(starts)}, ends {list(ends)}, axes {list(axes)}, steps {list(steps)}; "
            "expected lists of one length and no step of 0"
        )
    spans = [
        resolve_slice(dimensions[axis], start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    ]
    bounds = {name: tuple(span[end] for span in spans) for end, name in enumerate(("starts", "ends"))}
    context.add_for(node, "SLICE", {**bounds, "axes": axes, "steps": steps})


def resolve_slice(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Return Python's start and end for an ONNX slice, clamped to the axis. Source: ONNX Slice-13.

    A backward slice that includes the first element ends at `-(size + 1)`.
    """
    start, end = (value + size if value < 0 else value for value in (start, end))
    if step > 0:
        return symbolic_min(symbolic_max(start, 0), size), symbolic_min(symbolic_max(end, 0), size)
    if size == 0:
        return 0, 0
    end = symbolic_min(symbolic_max(end, -1), size - 1)
    return symbolic_min(symbolic_max(start, 0), size - 1), -(size + 1) if end == -1 else end


@converter("Pad", 2, 11, 13, 18, 19, 21, 23, 24, 25)
def convert_pad(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Pad, with constant inputs, to PAD."""
    pads, axes = context.attribute_or_input(node, "pads", 1), context.constant_integers(node, 3)
    if pads is None:
        raise invalid("Pad lacks 'pads'; expected a list of integers")
    if axes is not None:
        rank = context.rank(node)
        pads = _spread_pads(node, pads, normalize_axes(node, axes, rank), rank)
    value = _fill(context.optional_constant(node, 2), node.number("value", 0.0))
    context.add_for(node, "PAD", {"mode": node.text("mode", "constant"), "pads": pads, "value": value})


def _spread_pads(node: OnnxNode, pads: Sequence[int], axes: Sequence[int], rank: int) -> tuple[int, ...]:
    if len(pads) != 2 * len(axes):
        raise invalid(f"Pad has pads {list(pads)} for axes {list(axes)}; expected two per axis")
    complete = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        complete[axis], complete[rank + axis] = pads[position], pads[len(axes) + position]
    return tuple(complete)


def _fill(value: Array | None, default: float) -> float:
    if value is None or value.size == 0:
        return default
    fill = float(value.reshape(-1)[0])
    if value.dtype.kind in "iu" and int(fill) != int(value.reshape(-1)[0]):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"input 'constant_value' of Pad is {value}; expected one that float64 can hold",
        )
    return fill


@converter("CenterCropPad", 18)
def convert_center_crop_pad(context: ConversionContext, node: OnnxNode) -> None:
    """Convert CenterCropPad, with a constant shape, to PAD, which crops by negative pads."""
    dimensions = context.dimensions(node.input(0))
    rank, axes_attribute = len(dimensions), node.integers("axes")
    axes = normalize_axes(node, range(rank) if axes_attribute is None else axes_attribute, rank)
    target_shape = context.required_integers(node, 1)
    if len(target_shape) != len(axes):
        raise invalid(f"CenterCropPad has shape {list(target_shape)} for axes {list(axes)}; expected one per axis")
    pads = [0] * (2 * rank)
    for axis, size in zip(axes, target_shape, strict=True):
        more, less = symbolic_max(size - dimensions[axis], 0), symbolic_min(size - dimensions[axis], 0)
        begin = more // 2 - (-less) // 2
        pads[axis], pads[rank + axis] = begin, more + less - begin
    context.add_for(node, "PAD", {"mode": "constant", "pads": tuple(pads)})


@exporter("SLICE")
def export_slice(write: NodeWriter) -> str:
    """Export SLICE as Slice, or as Identity if it has no axes."""
    of = write.operation
    if not of.axes:
        return write.node("Identity", write.inputs[0])
    lists = (write.integers(*values) for values in (of.starts, of.ends, of.axes, of.steps))
    return write.node("Slice", write.inputs[0], *lists)


@exporter("PAD")
def export_pad(write: NodeWriter) -> str:
    """Export PAD as Pad."""
    of = write.operation
    if not write.type.rank:
        return write.node("Identity", write.inputs[0])
    value = ""
    if of.mode == "constant":
        value = write.constant(np.array(of.value).astype(write.type.dtype.array_type))
    return write.node("Pad", write.inputs[0], write.integers(*of.pads), value, mode=of.mode)


@exporter("ONE_HOT")
def export_one_hot(write: NodeWriter) -> str:
    """Export ONE_HOT as OneHot."""
    indices, values = write.inputs
    depth = write.number(write.operation.depth, DataType.INT64)
    indices = write.cast(indices, DataType.INT64)
    return write.node("OneHot", indices, depth, values, axis=write.operation.axis)
