"""Ufuncs of numpy as operations: the table for `__array_ufunc__`, type promotion and `out` arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from nnadapter.eager.execution import apply, cast
from nnadapter.eager.place import Dtype, Place, common, floating
from nnadapter.ir.operand import Array, freeze

Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]


def written(output: Any, outs: Sequence[Any], casting: Casting) -> Any:
    """Write results into the arrays given for them, and return those.

    Args:
        output: one result, or a tuple of them.
        outs: an array for each, or None where the result itself is wanted.
        casting: numpy's rule.

    Raises:
        TypeError: an array's data type cannot hold its result under that rule.
        ValueError: its dimensions cannot.
    """
    results = output if isinstance(output, tuple) else (output,)
    written_results = tuple(_copied(result, out, casting) for result, out in zip(results, outs, strict=True))
    return written_results if isinstance(output, tuple) else written_results[0]


def _copied(result: Any, out: Any, casting: Casting) -> Any:
    if out is None:
        return result
    np.copyto(out, np.asarray(result), casting=casting)
    return out


def is_among(result: object, arguments: Sequence[object]) -> bool:
    """Whether a result is one of a function's own arguments, or in a tuple of them."""
    return any(
        result is argument or (isinstance(argument, tuple) and any(result is element for element in argument))
        for argument in arguments
    )


class Promotion(StrEnum):
    """In which data type an operation is computed."""

    SAME = "same"
    """The common type of the inputs."""
    FLOATING = "floating"
    """The same, float32 where that is not floating."""
    BOOLEAN = "boolean"
    """Inputs are taken as true where they are not 0."""


@dataclass(frozen=True, slots=True)
class UfuncRow:
    """One ufunc."""

    type: str
    """The operation."""
    op_type: str
    """The ONNX op, for custom kernels."""
    rule: Promotion = Promotion.SAME


def _rows(rule: Promotion, text: str) -> dict[str, UfuncRow]:
    triples = [line.split() for line in text.strip().splitlines()]
    return {name: UfuncRow(type_, op_type, rule) for name, type_, op_type in triples}


UFUNCS: Mapping[str, UfuncRow] = MappingProxyType(
    {
        **_rows(
            Promotion.SAME,
            """
            add ADD Add
            subtract SUB Sub
            multiply MUL Mul
            power POW Pow
            maximum MAX Max
            minimum MIN Min
            remainder MOD Mod
            floor_divide FLOOR_DIV -
            negative NEG Neg
            absolute ABS Abs
            sign SIGN Sign
            square SQUARE -
            equal EQUAL Equal
            not_equal NOT_EQUAL -
            greater GREATER Greater
            greater_equal GREATER_EQUAL GreaterOrEqual
            less LESS Less
            less_equal LESS_EQUAL LessOrEqual
            bitwise_and BITWISE_AND BitwiseAnd
            bitwise_or BITWISE_OR BitwiseOr
            bitwise_xor BITWISE_XOR BitwiseXor
            invert BITWISE_NOT BitwiseNot
            matmul MAT_MUL MatMul
            """,
        ),
        **_rows(
            Promotion.FLOATING,
            """
            true_divide DIV Div
            divide DIV Div
            exp EXP Exp
            log LOG Log
            sqrt SQRT Sqrt
            sin SIN Sin
            cos COS Cos
            tan TAN Tan
            sinh SINH Sinh
            cosh COSH Cosh
            tanh TANH Tanh
            arcsin ASIN Asin
            arccos ACOS Acos
            arctan ATAN Atan
            arcsinh ASINH Asinh
            arccosh ACOSH Acosh
            arctanh ATANH Atanh
            reciprocal RECIPROCAL Reciprocal
            floor FLOOR Floor
            ceil CEIL Ceil
            rint ROUND Round
            isnan IS_NAN IsNaN
            """,
        ),
        **_rows(
            Promotion.BOOLEAN,
            """
            logical_and AND And
            logical_or OR Or
            logical_xor XOR Xor
            logical_not NOT Not
            """,
        ),
    }
)
"""By the ufunc's name."""

_ON_BOOLEANS: Mapping[str, str] = MappingProxyType(
    {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor", "invert": "logical_not"}
)
"""What numpy's bitwise ufuncs are on booleans."""

_COMPARISONS = frozenset({"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"})


def compute_ufunc(place: Place, ufunc: np.ufunc, inputs: Sequence[Any]) -> Array | None:
    """Return what a ufunc makes, or None where there is no operation for it.

    Args:
        place: where the tensors among the inputs live.
        ufunc: numpy's.
        inputs: arrays, and Python's own numbers.

    Raises:
        NotDelegatedError: the device does not take it, and fallback is forbidden.
    """
    arrays = [operand for operand in inputs if isinstance(operand, np.ndarray)]
    numbers = [operand for operand in inputs if not isinstance(operand, np.ndarray)]
    name = ufunc.__name__
    if name in _ON_BOOLEANS and all(array.dtype == np.bool_ for array in arrays) and not _beyond_bool(numbers):
        name = _ON_BOOLEANS[name]
    row = UFUNCS.get(name)
    if row is None or not arrays or not {type(number) for number in numbers} <= {bool, int, float}:
        return None
    dtype = _dtype(row, arrays, numbers)
    if name in _COMPARISONS and not _can_represent(dtype, numbers):
        # The answer is the same whatever the elements are: there is nothing for a device to do.
        return freeze(np.asarray(ufunc(*inputs)))
    operands = [
        cast(place, value, dtype) if isinstance(value, np.ndarray) else np.asarray(value, dtype) for value in inputs
    ]
    function = getattr(np, name)
    op_type = "" if row.op_type == "-" else row.op_type
    if name == "power" and dtype.kind in "iu" and (operands[1] < 0).any():
        raise ValueError("Integers to negative integer powers are not allowed.")  # numpy's words
    if name == "matmul" and min(array.ndim for array in operands) == 0:
        return None  # numpy says what is wrong with it
    return apply(place, row.type, operands, lambda *values: _as_device(function(*values), dtype), None, op_type)


def _beyond_bool(numbers: Sequence[object]) -> bool:
    return any(type(number) is not bool for number in numbers)


def _can_represent(dtype: Dtype, numbers: Sequence[object]) -> bool:
    """Whether an integer type has all of Python's ints among some numbers; others round."""
    if dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return all(limits.min <= number <= limits.max for number in numbers if isinstance(number, int))


def _dtype(row: UfuncRow, arrays: Sequence[Array], numbers: Sequence[object]) -> Dtype:
    common_dtype = (
        np.dtype(np.bool_) if row.rule is Promotion.BOOLEAN else common([array.dtype for array in arrays], numbers)
    )
    return floating(common_dtype) if row.rule is Promotion.FLOATING else common_dtype


def _as_device(result: Any, dtype: Dtype) -> Array:
    """Numpy's result in the type that the operation has: booleans stay what they are."""
    array = np.asarray(result)
    return array if array.dtype == np.bool_ else array.astype(dtype)
