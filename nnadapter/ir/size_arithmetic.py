"""Functions of sizes beside those of Python's operators, and the names that all of them have in files.

What a trace of sizes computes is a function of this table, so that files can hold it and no code.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

Function = Callable[..., Any]
"""Of one number or two."""


def to_integer(value: float, _: object) -> int:
    """The number as an integer, its fraction left out."""
    return int(value)


def to_float32(value: float, _: object) -> float:
    """The nearest number that float32 has."""
    return float(np.float32(value))


def to_float64(value: float, _: object) -> float:
    """The number as a float."""
    return float(value)


def quotient_of_integers(first: int, second: int) -> int:
    """The quotient towards zero, as C divides."""
    quotient = abs(first) // abs(second)
    return quotient if (first < 0) == (second < 0) else -quotient


def quotient_of_sizes(size: float, dimension: float) -> float:
    """The quotient in float32, as scales are given."""
    return float(np.float32(size) / np.float32(dimension))


def scaled_size(size: int, scale: float) -> int:
    """A size times a scale, rounded down, in float32 as scales are. Source: ONNX Resize-11."""
    return int(np.floor(np.float32(size) * np.float32(scale)))


def floor_of(value: float, _: object) -> float:
    """The largest whole number that is not larger, as a float."""
    return float(math.floor(value))


def ceil_of(value: float, _: object) -> float:
    """The least whole number that is not smaller, as a float."""
    return float(math.ceil(value))


def rounded_of(value: float, _: object) -> float:
    """The nearest whole number, as a float; of two, the even one."""
    return float(round(value))


def root_of(value: float, _: object) -> float:
    """The square root."""
    return math.sqrt(value)


def _rounded(function: Function) -> Function:
    def rounded(first: float, second: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(np.float32(first), np.float32(second)))

    return rounded


IN_FLOAT32: Mapping[Function, Function] = MappingProxyType(
    {
        function: _rounded(function)
        for function in (operator.add, operator.sub, operator.mul, operator.truediv, max, min)
    }
)
"""Functions of two numbers -> the same in float32."""

UNARY: Mapping[str, Function] = MappingProxyType(
    {"neg": operator.neg, "abs": abs, "floor": math.floor, "ceil": math.ceil}
)
"""Functions of one number by their names in files."""
BINARY: Mapping[str, Function] = MappingProxyType(
    {
        **{
            name: getattr(operator, name)
            for name in (
                "add", "sub", "mul", "floordiv", "truediv", "mod", "eq", "ne", "lt", "le", "gt", "ge",
            )
        },
        "max": max,
        "min": min,
        **{f"{function.__name__}.float32": rounded for function, rounded in IN_FLOAT32.items()},
        "to_integer": to_integer,
        "to_float32": to_float32,
        "to_float64": to_float64,
        "quotient_of_integers": quotient_of_integers,
        "quotient_of_sizes": quotient_of_sizes,
        "scaled_size": scaled_size,
        "floor_of": floor_of,
        "ceil_of": ceil_of,
        "rounded_of": rounded_of,
        "root_of": root_of,
    }
)  # fmt: skip
"""Functions of two numbers by their names in files."""
