"""Base class of table drivers: drivers, devices and contexts derived from their lowerings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DimensionBounds,
    DynamicShapes,
    ModelForm,
    OperationRows,
    OperationSupport,
    Option,
    OptionValues,
    Profile,
    Threading,
)
from nnadapter.drivers.interface import Admission, Context, Device, Driver, Program
from nnadapter.drivers.table_lowering import Computes, Lowering, Lowers, Names, data_types, rows_of
from nnadapter.errors import CompilationError, DeviceNotFoundError, DriverError
from nnadapter.ir.operand import Array, DataType
from partition.graph import SUPPORTED, Unsupported, Verdict

if TYPE_CHECKING:
    from nnadapter.drivers.table_program import LoweringTable
    from nnadapter.ir.model import Model


class TableDriver(Driver):
    """A driver with one device that computes operation by operation, each as a function of its table says.

    A sub-class has methods with the decorator `lowers`; that is all that it needs. Derived from them are what the
    device says of itself, verdicts, compiled segments and the run: constants are brought to the device once, values are
    dropped after their last use, and results that share memory with inputs or constants are copied before they are
    given away. Every context has an instance of the class of its own, so that lowerings may read `option_values`.
    """

    info: ClassVar[DeviceInfo | None] = None
    """The row of the device in `nnadapter devices`; its name is that of the entry point."""
    types: ClassVar[Names] = DataType.FLOAT32
    """Data types of operands where a lowering says nothing."""
    threading: ClassVar[Threading] = Threading.REENTRANT
    """Closures that keep something from call to call need another."""
    domains: ClassVar[tuple[str, ...]] = ()
    """ONNX domains whose nodes `lowers("CUSTOM")` is offered as they are; see `Capability.domains`."""
    options: ClassVar[tuple[Option, ...]] = ()
    """The options of the device."""
    dynamic_shapes: ClassVar[DynamicShapes] = DynamicShapes.NONE
    """Whether segments may come with sizes left open. They are lowered anew for the sizes that come, without being
    planned again; what a lowering decides on sizes, it decides for those that are decided alike."""
    dimension_bounds: ClassVar[DimensionBounds | None] = None
    """For `DynamicShapes.BOUNDED`: at which sizes the device runs."""
    limits: ClassVar[str] = ""
    """What holds for every operation, in words."""
    profile: ClassVar[Profile | None] = None
    """How fast the device is."""
    lowerings: ClassVar[Sequence[Lowers]] = ()
    """Functions with the decorator `lowers` that are not methods of the class, from other files say."""
    option_values: OptionValues = MappingProxyType({})
    """The options of the context that an instance serves, checked and with defaults filled in."""

    def to_device(self, array: Array) -> Any:
        """Return what closures are given for an array of the host: an input of a run, or a constant."""
        return array

    def to_host(self, value: Any) -> Array:
        """Return the array of what a closure gave; it may share memory with it."""
        return np.asarray(value, order="C")

    def admit(self, model: Model) -> Admission:
        """See `Context.admit`: limits on a segment as a whole. There are none, if it is not overridden."""
        return Admission()

    def devices(self) -> Sequence[DeviceInfo]:
        return () if self.info is None else (self.info,)

    def open(self, device_id: str) -> Device:
        """See `Driver.open`.

        Raises:
            DeviceNotFoundError: it is another than the first device.
        """
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"{type(self).__name__} has one device, 0, got {device_id!r}")
        return TableDevice(type(self))

    @cached_property
    def table(self) -> LoweringTable:
        """The table, bound to this instance.

        Raises:
            DriverError: a row is of no operation, an operation has two, `types` names what is none, or one of
                `lowerings` is no row.
        """
        from nnadapter.drivers.table_program import LoweringTable

        try:
            types = data_types(self.types)
        except ValueError as error:
            raise DriverError(f"{type(self).__name__} has types {self.types!r}: {error}") from None
        return LoweringTable(self._rows(), types)

    def _rows(self) -> Iterator[Lowering]:
        for name in dict.fromkeys(name for base_class in type(self).__mro__ for name in vars(base_class)):
            for row in rows_of(getattr(type(self), name)):
                yield replace(row, lower=getattr(self, name))
        for function in self.lowerings:
            rows = rows_of(function)
            if not rows:
                name = getattr(function, "__name__", type(function).__name__)
                raise DriverError(f"{type(self).__name__} lists {name} in lowerings, which lacks @lowers")
            yield from rows


class TableDevice(Device):
    """The one device of a driver that is a table."""

    def __init__(self, driver_type: type[TableDriver]) -> None:
        self._driver_type = driver_type

    @cached_property
    def capability(self) -> Capability:
        of = self._driver_type
        return Capability(
            form=ModelForm.IR,
            threading=of.threading,
            dynamic_shapes=of.dynamic_shapes,
            dimension_bounds=of.dimension_bounds,
            domains=of.domains,
            options=of.options,
            operations=OperationRows(self._operations),
            limits=of.limits,
            profile=of.profile,
        )

    def create_context(self, options: OptionValues) -> Context:
        return TableContext(self._driver(options))

    def _driver(self, options: OptionValues) -> TableDriver:
        """The driver that a context with these options has for its own."""
        driver = self._driver_type()
        driver.option_values = options
        return driver

    def _operations(self) -> Iterator[OperationSupport]:
        return (row.support for row in self._driver_type().table.rows.values())


class TableContext(Context):
    """A device under one set of options."""

    def __init__(self, driver: TableDriver) -> None:
        self._driver = driver

    def supported(self, model: Model) -> Sequence[Verdict]:
        """See `Context.supported`: what the table takes, and the lowering does not refuse.

        Raises:
            InvalidModelError: the model contradicts itself.
        """
        return [answer if isinstance(answer, Unsupported) else SUPPORTED for answer in self._lower_all(model)]

    def admit(self, model: Model) -> Admission:
        return self._driver.admit(model)

    def compile(self, model: Model) -> Program:
        """See `Context.compile`.

        Raises:
            InvalidModelError: the model contradicts itself.
            CompilationError: a lowering refused what it took before.
        """
        from nnadapter.drivers.table_program import OpenTableProgram, TableProgram

        closures = self._lowered(model)
        if model.has_dynamic_shapes:
            return OpenTableProgram(model, self._lowered, self._driver)
        return TableProgram(model, closures, self._lowered, self._driver)

    def _lowered(self, model: Model) -> list[Computes]:
        answers = self._lower_all(model)
        refused = {position: answer for position, answer in enumerate(answers) if isinstance(answer, Unsupported)}
        if refused:
            first = next(iter(refused.values()))
            raise CompilationError(f"{len(refused)} operations are not lowered: {first.detail}", refused=refused)
        return [answer for answer in answers if not isinstance(answer, Unsupported)]

    def _lower_all(self, model: Model) -> list[Computes | Unsupported]:
        from nnadapter.ir.verification import verify

        verify(model)
        table = self._driver.table
        return [table.lower(model, operation) for operation in model.operations]
