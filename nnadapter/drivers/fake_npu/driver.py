"""The driver and its one device: the way in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceType,
    DynamicShapes,
    MemoryStatistics,
    ModelForm,
    OperationRows,
    OperationSupport,
    OptionValues,
    Threading,
)
from nnadapter.drivers.fake_npu.context import FakeNpuContext
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory
from nnadapter.drivers.fake_npu.limits import LIMITS
from nnadapter.drivers.fake_npu.options import DEFAULT_MEMORY_BYTES, OPTIONS, read_options
from nnadapter.drivers.fake_npu.streams import FakeNpuEvent, FakeNpuStream, Waits
from nnadapter.drivers.interface import Context, Device, Driver, Event, Memory, Stream
from nnadapter.errors import DeviceNotFoundError
from nnadapter.process.cache import memoize


@memoize(1)
def capability() -> Capability:
    """The device's limits, from the tables of options and operations; the second is read when somebody looks."""
    return Capability(
        form=ModelForm.IR,
        threading=Threading.EXCLUSIVE,
        dynamic_shapes=DynamicShapes.ANY,
        checks_indices=True,
        memory_bytes=DEFAULT_MEMORY_BYTES,
        options=OPTIONS,
        limits=LIMITS,
        operations=OperationRows(_operations),
    )


def _operations() -> Iterator[OperationSupport]:
    from nnadapter.drivers.fake_npu.operations import OPERATIONS  # a program that is loaded needs no table

    for type_, row in sorted(OPERATIONS.items()):
        yield OperationSupport(
            type=type_, dtypes=row.other_dtypes.get(0, row.dtypes), ranks=row.ranks, limits=row.limits_in_words
        )


class FakeNpuDriver(Driver):
    """The fast device in numpy: a made-up accelerator that runs on the host."""

    def open(self, device_id: str) -> Device:
        """See `Driver.open`.

        Raises:
            DeviceNotFoundError: there is only device 0.
        """
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"fake_npu has no device {device_id!r}, only '0'; write fake_npu or fake_npu:0")
        return FakeNpuDevice()

    def devices(self) -> Sequence[DeviceInfo]:
        """See `Driver.devices`."""
        return (
            DeviceInfo(
                name="fake_npu",
                vendor="nnadapter",
                type=DeviceType.ACCELERATOR,
                sub_type="numpy",
                version="1.0",
                capability=capability(),
            ),
        )


class FakeNpuDevice(Device):
    """The one device."""

    def __init__(self) -> None:
        self._memory = DeviceMemory(DEFAULT_MEMORY_BYTES)
        self._waits = Waits()

    @property
    def capability(self) -> Capability:
        """See `Device.capability`."""
        return capability()

    def create_context(self, options: OptionValues) -> Context:
        """See `Device.create_context`.

        Raises:
            InvalidOptionError: `switched_off` names an operation that the device does not have.
        """
        return FakeNpuContext(read_options(options), self._memory)

    @property
    def has_memory(self) -> bool:
        """See `Device.has_memory`."""
        return True

    def allocate(self, nbytes: int) -> Memory:
        """See `Device.allocate`."""
        return self._memory.allocate(nbytes)

    def memory_statistics(self) -> MemoryStatistics | None:
        """See `Device.memory_statistics`: of what was allocated; weights and arenas are no part of it."""
        return self._memory.statistics

    @property
    def has_streams(self) -> bool:
        """See `Device.has_streams`."""
        return True

    def create_stream(self) -> Stream:
        """See `Device.create_stream`."""
        return FakeNpuStream(self._waits)

    def create_event(self) -> Event:
        """See `Device.create_event`."""
        return FakeNpuEvent(self._waits)

    @property
    def waits(self) -> int:
        """How often the host waited for a stream or an event since the device was opened."""
        return self._waits.number
