"""Rows of a driver's table: the lowering of an operation and its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from nnadapter.errors import DriverError
from nnadapter.ir.operand import DataType, Layout
from partition.graph import Unsupported

Computes = Callable[..., Any]
"""Values of the inputs by position (None for absent ones) -> the value of the output, a sequence where there are
several. It does not write to what it is given, and keeps nothing that it gives; a view of an input is fine."""
Lowers = Callable[..., Computes | Unsupported]
"""`NamedOperation` -> what computes it, or why the device does not."""
Names = str | Iterable[str]
"""One or several."""
_Function = TypeVar("_Function", bound=Lowers)

_ROWS = "nnadapter_lowerings"
"""The attribute in which a function carries its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """What a device takes of one operation, before its function is asked."""

    type: str
    """The operation's name in the schema table."""
    lower: Lowers
    """Gives what computes it."""
    types: frozenset[DataType] | None
    """Data types of operands; None for those of the driver."""
    results: frozenset[DataType]
    """More data types of results, for operations that make others than they read."""
    ranks: tuple[int, int] | None
    """Smallest and largest rank of the first input; None for those of the schema."""
    fuse_codes: frozenset[str]
    """Activations that it applies to its result."""
    layouts: frozenset[Layout]
    """Layouts of images."""
    quantized: bool
    """Whether it computes with quantized operands."""
    limits: str
    """Further limits, in words, which the function checks."""


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
    """Put a function, or a method of a `TableDriver`, into the driver's table.

    The function is given a `NamedOperation`, which is sound and within the limits said here. It gives what computes the
    operation from the values of its inputs, or `Unsupported` with the reason why it does not. It is called for verdicts
    and once more for each segment that is compiled.

    Args:
        operations: names of operations in the schema table, such as `CONV_2D`.
        types: data types of operands, one or several, if not those of the driver. A role that takes none of them, such
            as the condition of WHERE, has those that the schema table says.
        results: more data types of results: `bool` of comparisons, say.
        ranks: smallest and largest rank of the first input, if not all that the operation has.
        fuse_codes: activations that it applies to its result. Only a driver's own passes, and models that are built by
            hand, have others than `none`.
        layouts: layouts of images.
        quantized: whether it computes with quantized operands.
        limits: what else a person should know, in words; `nnadapter ops` shows it.

    Raises:
        DriverError: no operation is named, a name is no data type or layout, ranks are not two in this order, or what
            is decorated is no function.
    """
    if not operations or not all(isinstance(operation, str) for operation in operations):
        raise DriverError(f'lowers got {operations!r}, expected names of operations, as in @lowers("ADD", "SUB")')
    try:
        operand_types = None if types is None else data_types(types)
        result_types, orders = data_types(results), frozenset(map(Layout, _several(layouts)))
    except ValueError as error:
        raise DriverError(f"the lowering of {', '.join(operations)} names what is not known: {error}") from None
    if ranks is not None and not _is_span(ranks):
        raise DriverError(f"the lowering of {', '.join(operations)} has ranks {ranks!r}, expected two, such as (2, 4)")
    codes = frozenset(_several(fuse_codes))

    def put(function: _Function) -> _Function:
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

    return put


def _check_function(function: object, operations: tuple[str, ...]) -> None:
    if isinstance(function, (staticmethod, classmethod)) or not hasattr(function, "__dict__"):
        raise DriverError(
            f"the lowering of {', '.join(operations)} is of type {type(function).__name__}, "
            "expected a function: @lowers stands below @staticmethod"
        )


def rows_of(function: object) -> tuple[Lowering, ...]:
    """The rows that `lowers` gave a function; none for anything else."""
    rows = getattr(function, _ROWS, ())
    return rows if isinstance(rows, tuple) else ()  # some objects have whatever they are asked for


def data_types(names: Names) -> frozenset[DataType]:
    """The data types of one name, or of several.

    Raises:
        ValueError: a name is none.
    """
    return frozenset(map(DataType, _several(names)))


def _several(names: Names) -> Iterable[str]:
    return (names,) if isinstance(names, str) else names


def _is_span(ranks: Any) -> bool:
    two = isinstance(ranks, (tuple, list)) and len(ranks) == 2 and all(isinstance(rank, int) for rank in ranks)
    return two and ranks[0] <= ranks[1]
