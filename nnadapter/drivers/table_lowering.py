"""Rows of a table driver: the `lowers` decorator and the limits it records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from nnadapter.errors import DriverError
from nnadapter.ir.operand import DataType, Layout
from nnadapter.records import dataclass
from partition.graph import Unsupported

Computes = Callable[..., Any]
"""Compute function: input values by position (None if absent) -> output value, or a sequence of several. It may return
views of inputs, but must neither write to inputs nor retain outputs.
"""
Lowers = Callable[..., Computes | Unsupported]
"""Lowering: `NamedOperation` -> compute function, or a refusal."""
Names = str | Iterable[str]
_Function = TypeVar("_Function", bound=Lowers)

_ROWS = "nnadapter_lowerings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """Lowering of an operation, with limits checked before `lower` is called. See the arguments of `lowers`."""

    type: str
    lower: Lowers
    types: frozenset[DataType] | None
    results: frozenset[DataType]
    ranks: tuple[int, int] | None
    fuse_codes: frozenset[str]
    layouts: frozenset[Layout]
    quantized: bool
    limits: str


def lowers(
    *operations: str,
    types: Names | None = None,
    results: Names = (),
    ranks: tuple[int, int] | None = None,
    fuse_codes: Names = "none",
    layouts: Names = Layout.NCHW,
    quantized: bool = False,
    limits: str = "",
) -> Callable[[_Function], _Function]:
    """Register a function, or a method of a `TableDriver`, as the lowering of operations.

    The function gets a verified `NamedOperation` within the limits declared here. It returns a function that computes
    outputs from input values, or `Unsupported`. It is called for verdicts and again for each compiled segment.

    Args:
        operations: names of the schema table, such as `CONV_2D`.
        types: data types of operands, by default the driver's. If the schema allows none of these types for an input,
            such as the condition of WHERE, the input has the schema's types.
        results: additional data types of results, such as `bool` for comparisons.
        ranks: smallest and largest rank of the first input, by default the schema's.
        fuse_codes: activations that the lowering can apply to its result. Only a driver's passes and hand-built models
            use activations other than `none`.
        layouts: layouts of images.
        quantized: allow quantized operands.
        limits: further limits, as text.

    Raises:
        DriverError: an argument is invalid, or the decorated object is not a function.
    """
    if not operations or not all(isinstance(operation, str) for operation in operations):
        raise DriverError(f'lowers got {operations!r}, expected names of operations, as in @lowers("ADD", "SUB")')
    try:
        operand_types = None if types is None else data_types(types)
        result_types, orders = data_types(results), frozenset(map(Layout, _as_iterable(layouts)))
    except ValueError as error:
        raise DriverError(f"the lowering of {', '.join(operations)} has an unknown name: {error}") from None
    if ranks is not None and not _is_span(ranks):
        raise DriverError(f"the lowering of {', '.join(operations)} has ranks {ranks!r}, expected two, such as (2, 4)")
    codes = frozenset(_as_iterable(fuse_codes))

    def register(function: _Function) -> _Function:
        _check_function(function, operations)
        rows = tuple(
            Lowering(
                type=type_, lower=function, types=operand_types, results=result_types, ranks=ranks, fuse_codes=codes,
                layouts=orders, quantized=quantized, limits=limits,
            )
            for type_ in operations
        )  # fmt: skip
        setattr(function, _ROWS, rows_of(function) + rows)
        return function

    return register


def _check_function(function: object, operations: tuple[str, ...]) -> None:
    if isinstance(function, (staticmethod, classmethod)) or not hasattr(function, "__dict__"):
        raise DriverError(
            f"the lowering of {', '.join(operations)} is of type {type(function).__name__}, "
            "expected a function: place @lowers below @staticmethod"
        )


def rows_of(function: object) -> tuple[Lowering, ...]:
    """Return the rows of a lowering; empty for other objects."""
    rows = getattr(function, _ROWS, ())
    return rows if isinstance(rows, tuple) else ()  # Mock-like objects have every attribute.


def data_types(names: Names) -> frozenset[DataType]:
    """Parse one data type name or several.

    Raises:
        ValueError: a name is unknown.
    """
    return frozenset(map(DataType, _as_iterable(names)))


def _as_iterable(names: Names) -> Iterable[str]:
    return (names,) if isinstance(names, str) else names


def _is_span(ranks: Any) -> bool:
    two = isinstance(ranks, (tuple, list)) and len(ranks) == 2 and all(isinstance(rank, int) for rank in ranks)
    return two and ranks[0] <= ranks[1]
