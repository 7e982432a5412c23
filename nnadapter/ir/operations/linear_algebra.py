"""Small linear algebra: triangles, determinants, sums of products by an equation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, NUMERIC, OperandType
from nnadapter.ir.operations.equation import Equation, label_sizes, read_equation
from nnadapter.ir.operations.row import Types, no_flops, present, row, string
from nnadapter.ir.operations.shape_rules import as_first
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role


def _determinant(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    rows, columns = first.dimensions[-2:]
    if rows != columns:
        raise InvalidModelError(f"input {list(first.dimensions)} has matrices of {rows} by {columns}, expected squares")
    return (OperandType(first.dtype, first.dimensions[:-2]),)


def _determinant_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    """Elimination, two thirds of the cube, and the product of the diagonal."""
    size = present(types, 0).dimensions[-1]
    return outputs[0].size * (2 * size * size * size // 3 + size)


def _equation(types: Types, attributes: Attributes) -> tuple[Equation, dict[str, int]]:
    shapes = [type_.dimensions for type_ in types if type_ is not None]
    equation = read_equation(string(attributes, "equation"), list(map(len, shapes)))
    return equation, label_sizes(equation, shapes)


def _einsum(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    equation, sizes = _equation(types, attributes)
    return (OperandType(present(types, 0).dtype, tuple(sizes[label] for label in equation.result)),)


def _einsum_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    """Inputs one after the other: for each combination of indices of the two that meet, a product and a sum.

    An index that nobody reads behind is summed over at once. All at once, without intermediate results, is what counts
    where that is less.
    """
    equation, sizes = _equation(types, attributes)
    sums = len(sizes) > len(equation.result)
    whole = (len(types) - 1 + sums) * prod(sizes.values())
    left, pairwise = equation.terms[0], 0
    for position, term in enumerate(equation.terms[1:], 2):
        meeting = dict.fromkeys((*left, *term))
        read = {*equation.result, *(label for later in equation.terms[position:] for label in later)}
        left = tuple(label for label in meeting if label in read)
        pairwise += (1 + (len(left) < len(meeting))) * prod(sizes[label] for label in meeting)
    return min(whole, pairwise) if pairwise else whole


ROWS: tuple[OperationSchema, ...] = (
    row(
        "TRILU",
        (Role("input"),),
        as_first,
        no_flops,
        "ONNX Trilu-14: a triangle of each matrix, zeros elsewhere",
        attributes=(Attribute("upper", AttributeKind.BOOL, True), Attribute("k", AttributeKind.INT, 0)),
        ranks=(2, 64),
    ),
    row("DETERMINANT", (Role("input", FLOATING),), _determinant, _determinant_flops, "ONNX Det-22", ranks=(2, 64)),
    row(
        "EINSUM",
        (Role("inputs", NUMERIC, variadic=True, same_dtype_as="inputs"),),
        _einsum,
        _einsum_flops,
        "ONNX Einsum-28",
        attributes=(Attribute("equation", AttributeKind.STRING),),
    ),
)
"""The rows of this family."""
