"""Driver, device and context of fake_npu.

Modules that handle models are imported lazily, because deserialized programs need none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.capability import (
    DeviceInfo,
    DeviceType,
    DynamicShapes,
    MemoryStatistics,
    OptionValues,
    Profile,
    Threading,
    precisions_of,
)
from nnadapter.drivers.fake_npu.execution import Resources
from nnadapter.drivers.fake_npu.limits import LIMITS
from nnadapter.drivers.fake_npu.options import DEFAULT_MEMORY_BYTES, OPTIONS, operations_named, read_options
from nnadapter.drivers.fake_npu.program import deserialize_program
from nnadapter.drivers.fake_npu.streams import DeviceMemory, FakeNpuEvent, FakeNpuStream, Waits
from nnadapter.drivers.interface import Admission, Context, Device, Event, Memory, Program, Stream
from nnadapter.drivers.table_driver import TableContext, TableDevice, TableDriver
from nnadapter.errors import DeviceNotFoundError
from nnadapter.traces.trace import Trace
from partition.graph import Verdict

if TYPE_CHECKING:
    from nnadapter.drivers.fake_npu.compiling import Compiler
    from nnadapter.ir.model import Model


class FakeNpuDriver(TableDriver):
    """Driver of one device, simulated on the host."""

    threading = Threading.EXCLUSIVE
    dynamic_shapes = DynamicShapes.ANY
    options = OPTIONS
    precisions = precisions_of("float32 float16 w8a8 w8a16")
    limits = LIMITS
    checks_indices = True
    memory_bytes = DEFAULT_MEMORY_BYTES

    def open(self, device_id: str) -> Device:
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"fake_npu has no device {device_id!r}, only '0'; write fake_npu or fake_npu:0")
        return FakeNpuDevice(type(self))

    def devices(self) -> Sequence[DeviceInfo]:
        capability, kind = FakeNpuDevice(type(self)).capability, DeviceType.ACCELERATOR
        info: dict[str, Any] = {"name": "fake_npu", "vendor": "nnadapter", "sub_type": "numpy", "version": "1.0"}
        return (DeviceInfo(**info, type=kind, capability=capability),)

    @cached_property
    def table(self) -> Any:
        from nnadapter.drivers.fake_npu.operations import OperationTable

        return OperationTable(operations_named(cast("tuple[str, ...]", self.option_values.get("switched_off", ()))))


class FakeNpuDevice(TableDevice):
    """Device with its own memory, streams and events."""

    has_memory = True
    has_streams = True

    def __init__(self, driver_type: type[TableDriver] = FakeNpuDriver) -> None:
        super().__init__(driver_type)
        self._memory = DeviceMemory(DEFAULT_MEMORY_BYTES)
        self._waits = Waits()

    def create_context(self, options: OptionValues) -> Context:
        return FakeNpuContext(self._driver(options), self._memory)

    def allocate(self, nbytes: int) -> Memory:
        return self._memory.allocate(nbytes)

    def memory_statistics(self) -> MemoryStatistics | None:
        return self._memory.statistics

    def create_stream(self) -> Stream:
        return FakeNpuStream(self._waits)

    def create_event(self) -> Event:
        return FakeNpuEvent(self._waits)

    @property
    def waits(self) -> int:
        return self._waits.number


class FakeNpuContext(TableContext):
    """Device opened with one set of options. Thread-safe."""

    def __init__(self, driver: TableDriver, memory: DeviceMemory) -> None:
        super().__init__(driver)
        self._options, self.arenas = read_options(driver.option_values), Arenas()
        self._resources = Resources(self.arenas, memory, self._options.threads)
        self._trace: tuple[Trace, str] | None = None

    def with_trace(self, trace: Trace, lane: str) -> FakeNpuContext:
        self._trace = trace, lane
        return self

    def supported(self, model: Model) -> Sequence[Verdict]:
        from nnadapter.drivers.fake_npu.compiling import blame_invalid_models  # lazy: loads all operations

        with blame_invalid_models(model):
            return super().supported(model)

    def admit(self, model: Model) -> Admission:
        return self._compiler.admit(model)

    def profile(self) -> Profile | None:
        return self._options.profile

    def compile(self, model: Model) -> Program:
        return self._compiler.compile(model)

    def clone_with_constants(self, program: Program, model: Model) -> Program | None:
        return self._compiler.clone_with_constants(program, model)

    def deserialize(self, blob: bytes | memoryview, *, is_checked: bool = False) -> Program:
        program = deserialize_program(blob, self._resources, is_checked=is_checked)
        program.needs.check(self._options)
        return program

    def deserialize_view(self, blob: memoryview) -> Program:
        return self.deserialize(blob, is_checked=True)

    def close(self) -> None:
        if "_compiler" in vars(self):
            self._compiler.clear()
        self.arenas.close()

    @cached_property
    def _compiler(self) -> Compiler:
        from nnadapter.drivers.fake_npu.compiling import Compiler

        return Compiler(self._options, self._resources, self._trace)
