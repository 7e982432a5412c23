"""A driver's table: rows by operation, what they come to with the schemas, and verdicts by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nnadapter.drivers.capability import OperationSupport
from nnadapter.drivers.tables.lowering import Computes, Lowering
from nnadapter.errors import FAILURES, DriverError, InvalidModelError, close_names, describe
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import INTEGER, DataType, Operand
from nnadapter.ir.operations import schema_of
from nnadapter.ir.operations.fusion import FUSE_CODES
from nnadapter.ir.schema import Role
from partition.verdict import Reason, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """What a device takes of one operation, with the schema's own limits worked in."""

    lowering: Lowering
    dtypes: tuple[frozenset[DataType], ...]
    """Data types of every role; the last one counts for all behind it."""
    results: frozenset[DataType]
    """Data types of results."""
    quantized: frozenset[DataType]
    """Data types of operands that are quantized, of whatever role."""
    ranks: tuple[int, int]
    """Smallest and largest rank of the first input."""

    @property
    def support(self) -> OperationSupport:
        """The row as `nnadapter ops` shows it."""
        lowering = self.lowering
        return OperationSupport(type=lowering.type, dtypes=self.dtypes[0], ranks=self.ranks, limits=lowering.limits)


class LoweringTable:
    """Which operations a device computes, and how.

    Args:
        lowerings: the rows.
        dtypes: data types of operands where a row says nothing.

    Raises:
        DriverError: a row is of no operation, an operation has two, or names what it cannot have.
    """

    def __init__(self, lowerings: Iterable[Lowering], dtypes: frozenset[DataType]) -> None:
        rows: dict[str, TableRow] = {}
        for lowering in lowerings:
            _check(lowering, rows.get(lowering.type))
            rows[lowering.type] = _row(lowering, dtypes)
        self.rows: Mapping[str, TableRow] = rows
        """By operation."""

    def lower(self, model: Model, operation: Operation) -> Computes | Unsupported:
        """Return what computes one operation of a sound model, or why the device does not."""
        row = self.rows.get(operation.type)
        if row is None:
            return Unsupported(Reason.UNSUPPORTED_OPERATION, f"there is no kernel for {operation.type}")
        named = NamedOperation(model, operation)
        for refusal in _refusals(named, row):
            return refusal
        try:
            lowered = row.lowering.lower(named)
        except FAILURES as error:
            return Unsupported(Reason.DRIVER_ERROR, f"the lowering of {operation.type} failed: {describe(error)}")
        if callable(lowered) or isinstance(lowered, Unsupported):
            return lowered
        detail = f"the lowering of {operation.type} gave {type(lowered).__name__}, expected a function or Unsupported"
        return Unsupported(Reason.DRIVER_ERROR, detail)


def _check(lowering: Lowering, other: TableRow | None) -> None:
    """Refuse a row that cannot be meant."""
    name = _name(lowering)
    try:
        schema = schema_of(lowering.type)
    except InvalidModelError as error:
        raise DriverError(f"{name} lowers {lowering.type!r}: {error}") from error
    if other is not None:
        raise DriverError(f"{name} and {_name(other.lowering)} both lower {lowering.type}, expected one of them")
    unknown = lowering.fuse_codes - FUSE_CODES.keys()
    if unknown:
        raise DriverError(f"{name} names the activation {min(unknown)!r}; {close_names(min(unknown), FUSE_CODES)}")
    accepted_dtypes = frozenset[DataType]().union(*(role.dtypes for role in schema.inputs))
    if lowering.types is not None and not lowering.types & accepted_dtypes:
        raise DriverError(
            f"{name} lowers {lowering.type} for {', '.join(sorted(lowering.types))}, "
            f"expected some of {', '.join(sorted(accepted_dtypes))}"
        )


def _name(lowering: Lowering) -> str:
    return getattr(lowering.lower, "__name__", "a function")


def _row(lowering: Lowering, dtypes: frozenset[DataType]) -> TableRow:
    schema = schema_of(lowering.type)
    row_dtypes = dtypes if lowering.types is None else lowering.types
    return TableRow(
        lowering=lowering,
        dtypes=tuple(_role_dtypes(role, row_dtypes) for role in schema.inputs),
        results=row_dtypes | lowering.results,
        quantized=row_dtypes & INTEGER if lowering.quantized else frozenset(),
        ranks=schema.ranks if lowering.ranks is None else lowering.ranks,
    )


def _role_dtypes(role: Role, dtypes: frozenset[DataType]) -> frozenset[DataType]:
    return role.dtypes & dtypes or role.dtypes


def _refusals(operation: NamedOperation, row: TableRow) -> Iterator[Unsupported]:
    """Everything that is wrong, in the order in which a person should hear of it."""
    lowering, inputs = row.lowering, operation.inputs
    code = operation.attributes.get("fuse_code", "none")
    if code not in lowering.fuse_codes:
        detail = f"{operation.type} has the activation {code}, accepted: {', '.join(sorted(lowering.fuse_codes))}"
        yield Unsupported(Reason.UNSUPPORTED_ATTRIBUTE, detail)
    last = len(row.dtypes) - 1
    for position, operand in enumerate(inputs):
        if operand is not None:
            yield from _refused_operand(operation, operand, row.dtypes[min(position, last)], row)
    for operand in operation.outputs:
        yield from _refused_operand(operation, operand, row.results, row)
    smallest, largest = row.ranks
    if inputs and inputs[0] is not None and not smallest <= inputs[0].type.rank <= largest:
        detail = f"{operation.type} got {inputs[0].type} for {inputs[0].name!r}, accepted: rank {smallest} to {largest}"
        yield Unsupported(Reason.UNSUPPORTED_RANK, detail)


def _refused_operand(
    operation: NamedOperation, operand: Operand, dtypes: frozenset[DataType], row: TableRow
) -> Iterator[Unsupported]:
    """What is wrong with an operand. Open sizes are put into words only then: that decides on them."""
    type_, layouts = operand.type, row.lowering.layouts
    accepted_dtypes = dtypes if type_.quantization is None else row.quantized
    if not accepted_dtypes:
        yield _wrong(operation, operand, "what is not quantized")
    elif type_.dtype not in accepted_dtypes:
        yield _wrong(operation, operand, ", ".join(sorted(accepted_dtypes)))
    elif type_.layout not in layouts:
        yield _wrong(operation, operand, ", ".join(sorted(layouts)))


def _wrong(operation: NamedOperation, operand: Operand, accepted: str) -> Unsupported:
    quantized = "" if operand.type.quantization is None else "quantized "
    detail = f"{operation.type} got {quantized}{operand.type} for {operand.name!r}, accepted: {accepted}"
    return Unsupported(Reason.UNSUPPORTED_DTYPE, detail)
