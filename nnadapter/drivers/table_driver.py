"""Base class of drivers that are tables of lowerings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nnadapter.drivers.capability import (
    Capability,
    ComputePrecision,
    DeviceInfo,
    DimensionBounds,
    DynamicShapes,
    ModelForm,
    OperationRows,
    OperationSupport,
    Option,
    OptionValues,
    Precision,
    Profile,
    Threading,
    precisions_of,
)
from nnadapter.drivers.interface import Admission, Context, Device, Driver, Program
from nnadapter.drivers.table_lowering import Computes, Lowering, Lowers, Names, data_types, rows_of
from nnadapter.errors import CompilationError, DeviceNotFoundError, DriverError
from nnadapter.ir.operand import Array, DataType
from nnadapter.records import replace
from partition.graph import SUPPORTED, Unsupported, Verdict

if TYPE_CHECKING:
    from nnadapter.drivers.table_program import LoweringTable
    from nnadapter.ir.model import Model


class TableDriver(Driver):
    """Driver of one device that computes operation by operation.

    Subclass it and decorate methods with `lowers`. Capability, verdicts, segments and execution derive from them.
    Every field of `Capability` except `form` and `operations` may be a class attribute of that name.
    Constants are copied to the device once, values are dropped after their last use, and results that share memory
    with inputs or constants are copied. Each context has its own instance, so lowerings may read `option_values`.
    """

    info: ClassVar[DeviceInfo | None] = None
    """Row of `nnadapter devices`, named like the entry point."""
    types: ClassVar[Names] = DataType.FLOAT32
    """Data types of operands for lowerings without `types`."""
    threading: ClassVar[Threading] = Threading.REENTRANT
    """Choose `EXCLUSIVE` or `SERIAL` if compute functions keep state between calls."""
    domains: ClassVar[tuple[str, ...]] = ()
    """ONNX domains with nodes that reach `lowers("CUSTOM")`; see `Capability.domains`."""
    options: ClassVar[tuple[Option, ...]] = ()
    precisions: ClassVar[tuple[ComputePrecision, ...]] = precisions_of("float32")
    default_precision: ClassVar[Precision] = Precision.FLOAT32
    dynamic_shapes: ClassVar[DynamicShapes] = DynamicShapes.NONE
    """Support for dynamic shapes. New sizes need new lowering, but no planning. Comparisons of sizes become guards."""
    dimension_bounds: ClassVar[DimensionBounds | None] = None
    """Supported sizes, for `DynamicShapes.BOUNDED`."""
    limits: ClassVar[str] = ""
    """Limits of all operations, as text."""
    profile: ClassVar[Profile | None] = None
    lowerings: ClassVar[Sequence[Lowers]] = ()
    """Functions decorated with `lowers` outside the class."""
    option_values: OptionValues = MappingProxyType({})
    """Validated options of this instance's context, with defaults."""

    def to_device(self, array: Array) -> Any:
        """Convert an input or a constant to the device's values."""
        return array

    def to_host(self, value: Any) -> Array:
        """Convert a value to an array, which may share its memory."""
        return np.asarray(value, order="C")

    def admit(self, model: Model) -> Admission:
        """Check limits of a segment as a whole, see `Context.admit`."""
        return Admission()

    def devices(self) -> Sequence[DeviceInfo]:
        return () if self.info is None else (self.info,)

    def open(self, device_id: str) -> Device:
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"{type(self).__name__} has only device 0, got {device_id!r}")
        return TableDevice(type(self))

    @cached_property
    def table(self) -> LoweringTable:
        """Lowering table bound to this instance.

        Raises:
            DriverError: a row, `types` or `lowerings` is invalid.
        """
        from nnadapter.drivers.table_program import LoweringTable

        try:
            types = data_types(self.types)
        except ValueError as error:
            raise DriverError(f"attribute 'types' of {type(self).__name__} is {self.types!r}: {error}") from None
        return LoweringTable(self._rows(), types)

    def _rows(self) -> Iterator[Lowering]:
        for name in dict.fromkeys(name for base_class in type(self).__mro__ for name in vars(base_class)):
            for row in rows_of(getattr(type(self), name)):
                yield replace(row, lower=getattr(self, name))
        for function in self.lowerings:
            rows = rows_of(function)
            if not rows:
                name = getattr(function, "__name__", type(function).__name__)
                raise DriverError(f"{type(self).__name__} lists {name} in lowerings, which lacks the decorator @lowers")
            yield from rows


class TableDevice(Device):
    """Device of a `TableDriver`."""

    def __init__(self, driver_type: type[TableDriver]) -> None:
        self._driver_type = driver_type

    @cached_property
    def capability(self) -> Capability:
        of = self._driver_type
        names = (entry.name for entry in fields(Capability) if hasattr(of, entry.name))
        declared = {name: getattr(of, name) for name in names}
        return Capability(**declared | {"form": ModelForm.IR, "operations": OperationRows(self._operations)})

    def create_context(self, options: OptionValues) -> Context:
        return TableContext(self._driver(options))

    def _driver(self, options: OptionValues) -> TableDriver:
        driver = self._driver_type()
        driver.option_values = options
        return driver

    def _operations(self) -> Iterator[OperationSupport]:
        return (row.support for row in self._driver_type().table.rows.values())


class TableContext(Context):
    """Context of a table driver: an instance of it with one set of options."""

    def __init__(self, driver: TableDriver) -> None:
        self._driver = driver

    def supported(self, model: Model) -> Sequence[Verdict]:
        return [answer if isinstance(answer, Unsupported) else SUPPORTED for answer in self._lower_all(model)]

    def admit(self, model: Model) -> Admission:
        return self._driver.admit(model)

    def compile(self, model: Model) -> Program:
        from nnadapter.drivers.table_program import DynamicTableProgram, TableProgram

        closures = self._lowered(model)
        if model.has_dynamic_shapes:
            return DynamicTableProgram(model, self._lowered, self._driver)
        return TableProgram(model, closures, self._lowered, self._driver)

    def _lowered(self, model: Model) -> list[Computes]:
        answers = self._lower_all(model)
        refused = {position: answer for position, answer in enumerate(answers) if isinstance(answer, Unsupported)}
        if refused:
            first = next(iter(refused.values()))
            raise CompilationError(f"{len(refused)} operations cannot be lowered: {first.detail}", refused=refused)
        return [answer for answer in answers if not isinstance(answer, Unsupported)]

    def _lower_all(self, model: Model) -> list[Computes | Unsupported]:
        from nnadapter.ir.verification import verify

        verify(model)
        table = self._driver.table
        return [table.lower(model, operation) for operation in model.operations]
