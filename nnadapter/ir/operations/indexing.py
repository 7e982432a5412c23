"""Operations that choose or add elements by position: slices, gathering, padding. They count no FLOPs."""

from __future__ import annotations

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.operations.row import Types, integer, integers, no_flops, present, row, string
from nnadapter.ir.operations.shape_rules import check_axis, check_indices, check_length
from nnadapter.ir.operations.windows import like
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role
from nnadapter.ir.symbolic_numbers import symbolic_max, symbolic_min

_INPUT = Role("input")
_INDICES = Role("indices", frozenset({DataType.INT32, DataType.INT64}))
_AXIS = Attribute("axis", AttributeKind.INT)


def _slice(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    axes = integers(attributes, "axes")
    starts, ends, steps = (integers(attributes, name) for name in ("starts", "ends", "steps"))
    for name, values in (("starts", starts), ("ends", ends), ("steps", steps)):
        check_length(name, values, len(axes))
    if len(frozenset(axes)) != len(axes):
        raise InvalidModelError(f"axes is {list(axes)}, expected none twice")
    dimensions = list(first.dimensions)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = dimensions[check_axis(axis, first.rank)]
        dimensions[axis] = _slice_size(axis, size, start, end, step)
    return (like(first, tuple(dimensions)),)


def _slice_size(axis: int, size: int, start: int, end: int, step: int) -> int:
    if step == 0:
        raise InvalidModelError(f"the step along axis {axis} is 0, expected another value")
    # -(size + 1) is how an end before the first element is written: numpy would read -1 as the last one.
    if not 0 <= start <= size or not (0 <= end <= size or (step < 0 and end == -(size + 1))):
        raise InvalidModelError(
            f"the slice along axis {axis} is {start}:{end}:{step}, expected start and end in 0 to {size}"
            f"{f', or end {-(size + 1)}' if step < 0 else ''}"
        )
    if step > 0:
        return symbolic_max(-(-(end - start) // step), 0)
    first, last = symbolic_min(start, size - 1), symbolic_max(end, -1)
    return symbolic_max(-((last - first) // -step), 0)


def _gather(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    axis = check_axis(integer(attributes, "axis"), first.rank)
    indices = present(types, 1).dimensions
    return (OperandType(first.dtype, (*first.dimensions[:axis], *indices, *first.dimensions[axis + 1 :])),)


def _gather_elements(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, indices = present(types, 0), present(types, 1)
    check_indices(indices, first, check_axis(integer(attributes, "axis"), first.rank))
    return (like(first, indices.dimensions),)


def _pad(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    # pads = [begin of every axis…, end of every axis…]; a negative one takes elements away
    pads = integers(attributes, "pads")
    check_length("pads", pads, 2 * first.rank)
    mode = string(attributes, "mode")
    sizes = zip(first.dimensions, pads[: first.rank], pads[first.rank :], strict=True)
    return (like(first, tuple(_padded(mode, axis, *sizes_) for axis, sizes_ in enumerate(sizes))),)


def _padded(mode: str, axis: int, size: int, begin: int, end: int) -> int:
    kept = size + min(begin, 0) + min(end, 0)
    if kept < 0:
        raise InvalidModelError(f"pads {begin} and {end} take more than the {size} elements of axis {axis}")
    most = max(begin, end)
    limit = {"constant": most, "reflect": kept - 1}.get(mode, most if kept else 0)
    if most > max(limit, 0):
        raise InvalidModelError(
            f"pads along axis {axis} are {begin} and {end}, "
            f"expected at most {max(limit, 0)} in mode {mode!r} on {kept} elements"
        )
    return kept + max(begin, 0) + max(end, 0)


ROWS: tuple[OperationSchema, ...] = (
    row(
        "SLICE",
        (_INPUT,),
        _slice,
        no_flops,
        "NNAPI STRIDED_SLICE; NNADAPTER_SLICE; ONNX Slice-13, normalized as for Python's slice",
        attributes=tuple(Attribute(name, AttributeKind.INTS) for name in ("starts", "ends", "axes", "steps")),
    ),
    row(
        "GATHER",
        (_INPUT, _INDICES),
        _gather,
        no_flops,
        "NNAPI GATHER; ONNX Gather-13; negative indices count from the end",
        attributes=(_AXIS,),
        ranks=(1, 64),
    ),
    row(
        "GATHER_ELEMENTS",
        (_INPUT, _INDICES),
        _gather_elements,
        no_flops,
        "ONNX GatherElements-13; negative indices count from the end",
        attributes=(_AXIS,),
        ranks=(1, 64),
    ),
    row(
        "PAD",
        (_INPUT,),
        _pad,
        no_flops,
        "NNAPI PAD_V2, MIRROR_PAD; ONNX Pad-21",
        attributes=(
            Attribute("mode", AttributeKind.STRING, "constant", ("constant", "reflect", "edge", "wrap")),
            Attribute("pads", AttributeKind.INTS),
            Attribute("value", AttributeKind.FLOAT, 0.0),
        ),
    ),
)
"""The rows of this family."""
