"""What values hold that operations make of constants, such as dequantized weights, before the run.

Such operations stay in the model: only the device knows whether it rather has the integers or what they stand for. What
moves elements behind them passes on what is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from nnadapter.ir.derived import derived
from nnadapter.ir.operand import Array, Quantization
from nnadapter.ir.passes.evaluation import MOVES
from nnadapter.ir.schema import Attributes
from nnadapter.ir.tracing import is_traced

_KEEPING = frozenset({"ASSIGN", "RESHAPE", "TRANSPOSE"})
"""Operations whose result has just the elements of their input; what grows is left to the run."""


@dataclass(frozen=True, slots=True, eq=False)
class Dequantized:
    """A constant of integers and what they stand for."""

    integers: Array
    quantization: Quantization


@dataclass(frozen=True, slots=True, eq=False)
class KnownContents:
    """The contents of a value, worked out when they are asked for."""

    contents: Callable[[], Array]
    """Read-only, in the value's data type."""
    source: Dequantized | None = None
    """What they were dequantized from, with the dimensions of the value."""


def passed_on(type_: str, attributes: Attributes, known: KnownContents) -> KnownContents | None:
    """Return what is known of the result of an operation; None if it computes, or varies with the model's inputs.

    Args:
        type_: of the operation.
        attributes: all that matter for its result.
        known: of its one input.
    """
    if type_ not in _KEEPING or any(map(is_traced, attributes.values())):
        return None
    exact = tuple(sorted(attributes.items()))
    source = known.source
    if source is not None:
        is_free = type_ == "ASSIGN" or source.quantization.axis is None
        source = Dequantized(_moved(source.integers, type_, exact), source.quantization) if is_free else None
    return KnownContents(partial(_moved_later, known.contents, type_, exact), source)


def _moved_later(contents: Callable[[], Array], type_: str, attributes: tuple[tuple[str, Any], ...]) -> Array:
    return _moved(contents(), type_, attributes)


def _moved(x: Array, type_: str, attributes: tuple[tuple[str, Any], ...]) -> Array:
    return derived(_computed, x, type_=type_, attributes=attributes)


def _computed(x: Array, *, type_: str, attributes: tuple[tuple[str, Any], ...]) -> Array:
    result: Array = MOVES[type_](dict(attributes), x)
    return result
