"""Operations that read or write elements at positions that a tensor holds."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import NUMERIC, DataType, OperandType
from nnadapter.ir.operations.row import Types, integer, no_flops, present, row
from nnadapter.ir.operations.shape_rules import check_axis, check_dimensions, check_indices, check_vector
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_INPUT = Role("input")
_INTEGERS = frozenset({DataType.INT32, DataType.INT64})
_INDICES = Role("indices", _INTEGERS)
_UPDATES = Role("updates", same_dtype_as="input")
_AXIS = Attribute("axis", AttributeKind.INT)
_REDUCTION = Attribute("reduction", AttributeKind.STRING, "none", ("none", "add", "mul", "max", "min"))


def _plain(type_: OperandType, dimensions: tuple[int, ...] | None = None) -> OperandType:
    return OperandType(type_.dtype, type_.dimensions if dimensions is None else dimensions)


def _index_depth(indices: OperandType, available: int) -> int:
    """How many axes a row of `indices` [..., depth] addresses."""
    if indices.rank < 1:
        raise InvalidModelError("indices is a scalar, expected rank 1 or more")
    depth = indices.dimensions[-1]
    if not 0 <= depth <= available:
        raise InvalidModelError(f"indices addresses {depth} axes in its last one, expected at most {available}")
    return depth.__index__()


def _gather_nd(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, indices = present(types, 0), present(types, 1)
    batch = integer(attributes, "batch_dims")
    if not 0 <= batch < min(first.rank, indices.rank):
        limit = min(first.rank, indices.rank)
        raise InvalidModelError(f"batch_dims is {batch}, expected 0 or more and less than {limit}, the smaller rank")
    if first.dimensions[:batch] != indices.dimensions[:batch]:
        raise InvalidModelError(
            f"input {list(first.dimensions)} and indices {list(indices.dimensions)} "
            f"differ in their first {batch} dimensions, expected none to"
        )
    depth = _index_depth(indices, first.rank - batch)
    return (_plain(first, (*indices.dimensions[:-1], *first.dimensions[batch + depth :])),)


def _scatter_elements(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, indices = present(types, 0), present(types, 1)
    check_indices(indices, first, check_axis(integer(attributes, "axis"), first.rank))
    check_dimensions("updates", present(types, 2), indices.dimensions)
    return (_plain(first),)


def _scatter_nd(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, indices = present(types, 0), present(types, 1)
    depth = _index_depth(indices, first.rank)
    check_dimensions("updates", present(types, 2), (*indices.dimensions[:-1], *first.dimensions[depth:]))
    return (_plain(first),)


def _tensor_scatter(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, updates = present(types, 0), present(types, 1)
    axis = check_axis(integer(attributes, "axis"), first.rank)
    if axis == 0:
        raise InvalidModelError("axis is 0, expected another one: the first axis is that of the batch")
    expected = list(first.dimensions)
    if updates.rank == first.rank:
        expected[axis] = updates.dimensions[axis]
    check_dimensions("updates", updates, tuple(expected))
    if expected[axis] > first.dimensions[axis]:
        raise InvalidModelError(f"updates has {expected[axis]} positions, expected at most {first.dimensions[axis]}")
    indices = types[2] if len(types) > 2 else None
    if indices is not None:
        check_vector("indices", indices, first.dimensions[0])
    return (_plain(first),)


def _one_hot(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    indices, values = present(types, 0), present(types, 1)
    check_vector("values", values, 2)
    axis = check_axis(integer(attributes, "axis"), indices.rank + 1)
    depth = integer(attributes, "depth")
    if depth < 1:
        raise InvalidModelError(f"depth is {depth}, expected 1 or more")
    return (_plain(values, (*indices.dimensions[:axis], depth, *indices.dimensions[axis:])),)


def _reverse_sequence(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    batch, time = (check_axis(integer(attributes, name), first.rank) for name in ("batch_axis", "time_axis"))
    if batch == time:
        raise InvalidModelError(f"batch_axis and time_axis are both {batch}, expected two axes")
    check_vector("lengths", present(types, 1), first.dimensions[batch])
    return (_plain(first),)


def _per_update(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    """One step for each update that is combined with what was there."""
    return 0 if attributes["reduction"] == "none" else present(types, 2).size


ROWS: tuple[OperationSchema, ...] = (
    row(
        "GATHER_ND",
        (_INPUT, _INDICES),
        _gather_nd,
        no_flops,
        "ONNX GatherND-13; negative indices count from the end",
        attributes=(Attribute("batch_dims", AttributeKind.INT, 0),),
        ranks=(1, 64),
    ),
    row(
        "SCATTER_ELEMENTS",
        (_INPUT, _INDICES, _UPDATES),
        _scatter_elements,
        _per_update,
        "ONNX ScatterElements-18; negative indices count from the end, and of equal ones the last is kept",
        attributes=(_AXIS, _REDUCTION),
        ranks=(1, 64),
    ),
    row(
        "SCATTER_ND",
        (_INPUT, _INDICES, _UPDATES),
        _scatter_nd,
        _per_update,
        "ONNX ScatterND-18; negative indices count from the end, and of equal ones the last is kept",
        attributes=(_REDUCTION,),
        ranks=(1, 64),
    ),
    row(
        "TENSOR_SCATTER",
        (_INPUT, _UPDATES, Role("indices", _INTEGERS, optional=True)),
        _tensor_scatter,
        no_flops,
        "ONNX TensorScatter-24: a cache [B, …, L, …] written from one position per batch on",
        attributes=(_AXIS, Attribute("mode", AttributeKind.STRING, "linear", ("linear", "circular"))),
        ranks=(2, 64),
    ),
    row(
        "ONE_HOT",
        (Role("indices", NUMERIC), Role("values")),
        _one_hot,
        no_flops,
        "ONNX OneHot-11; values = [off, on]; negative indices count from the end, others outside give only off",
        attributes=(_AXIS, Attribute("depth", AttributeKind.INT)),
    ),
    row(
        "REVERSE_SEQUENCE",
        (_INPUT, Role("lengths", _INTEGERS)),
        _reverse_sequence,
        no_flops,
        "ONNX ReverseSequence-10; what lies beyond a sequence's length stays where it is",
        attributes=(Attribute("batch_axis", AttributeKind.INT), Attribute("time_axis", AttributeKind.INT)),
        ranks=(2, 64),
    ),
)
"""The rows of this family."""
