"""Driver `xla`: devices, options and contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nnadapter.drivers.capability import DeviceInfo, DeviceType, MemoryStatistics, Option, OptionValues, precisions_of
from nnadapter.drivers.interface import Compatibility, Context, DeviceTensor, Event, Memory, Program, Stream
from nnadapter.drivers.registry import HardwareNeeds, Machine
from nnadapter.drivers.table_driver import TableContext, TableDevice, TableDriver
from nnadapter.drivers.table_lowering import Lowering, rows_of
from nnadapter.drivers.xla.compilation import compiled, platform_of, prepared, trim_heap
from nnadapter.drivers.xla.engine import EXTRA, default_kind, missing, present, version
from nnadapter.drivers.xla.program import (
    XlaEvent,
    XlaMemory,
    XlaProgram,
    XlaStream,
    compatibility,
    copied_from_dlpack,
    deserialized,
)
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError
from nnadapter.ir.model import Model
from nnadapter.process.packages import has_extra
from nnadapter.records import replace

PRECISIONS = {"float32": "highest", "tensorfloat32": "high", "bfloat16": "default"}
"""Option -> JAX's name."""

OPTIONS = (
    Option(
        name="precision",
        default="float32",
        choices=tuple(PRECISIONS),
        help="Precision to which operands of float32 products are rounded at most; sums stay float32. Lower ones are "
        "faster on GPUs and TPUs. CPUs compute tensorfloat32 as float32.",
    ),
)


class XlaContext(TableContext):
    """Context that compiles each segment as one function."""

    def __init__(self, driver: TableDriver, device: Any) -> None:
        super().__init__(driver)
        self._device = device
        self._precision = str(driver.option_values["precision"])

    def compile(self, model: Model) -> Program:
        self._lowered(model)
        ready = prepared(model)
        program = compiled(ready, self._lowered(ready), self._device, PRECISIONS[self._precision])
        return XlaProgram(program, self._seal())

    def deserialize(self, blob: bytes) -> Program:
        return deserialized(blob, self._seal(), self._device)

    def deserialize_view(self, blob: memoryview) -> Program:
        return deserialized(blob, self._seal(), self._device, is_checked=True)

    def check_blob(self, blob: memoryview) -> Compatibility:
        return compatibility(blob, self._seal())

    def close(self) -> None:
        trim_heap()

    def _seal(self) -> dict[str, str]:
        return {"jax": version(), "platform": platform_of(self._device), "precision": self._precision}


KINDS = {"cpu": DeviceType.CPU, "gpu": DeviceType.GPU, "tpu": DeviceType.ACCELERATOR}

_SYSTEMS = ("Linux", "Windows", "Darwin")
_NEEDS = {
    "cpu": HardwareNeeds(_SYSTEMS),
    "gpu": HardwareNeeds(("Linux",), ("sys/class/drm/*/device/vendor",), "0x10de"),
    "tpu": HardwareNeeds(("Linux",), ("sys/class/accel/*/device/vendor",), "0x1ae0"),
}
"""Hardware by PCI vendor: 0x10de NVIDIA, 0x1ae0 Google."""
_HOW_TO_GET = {
    "cpu": "unset JAX_PLATFORMS, or include cpu in it",
    "gpu": "pip install 'jax[cuda13]' on a machine with an NVIDIA GPU, or choose xla:cpu",
    "tpu": "pip install 'jax[tpu]' on a machine with a TPU, or choose xla:cpu",
}


class XlaDriver(TableDriver):
    """Driver of JAX's devices."""

    types = "float32"
    precisions = precisions_of("float32 bfloat16")
    options = OPTIONS
    limits = "sizes are known"

    def _rows(self) -> Iterator[Lowering]:
        from nnadapter.drivers.xla.lowerings import LOWERINGS

        for function in LOWERINGS:
            yield from rows_of(function)

    def open(self, device_id: str) -> XlaDevice:
        """Open `cpu`, `gpu`, `tpu`, or one of several such as `gpu.1`; JAX's default if `device_id` is empty."""
        if not has_extra(EXTRA):
            raise missing(f"xla:{device_id}" if device_id else "xla")
        name = device_id or default_kind()
        kind, _, number = name.partition(".")
        if kind not in KINDS or (number and not number.isdecimal()):
            offered = ", ".join(f"xla:{device_kind}" for device_kind in KINDS)
            raise DeviceNotFoundError(f"xla has no device {device_id!r}; choose one of {offered}")
        platform_devices = present(kind)
        if int(number or 0) >= len(platform_devices):
            raise DeviceUnavailableError(f"device 'xla:{name}' cannot be used: {_missing(kind, len(platform_devices))}")
        return XlaDevice(type(self), platform_devices[int(number or 0)])

    def devices(self) -> Sequence[DeviceInfo]:
        return [row for kind in KINDS for row in _rows(kind)]


class XlaDevice(TableDevice):
    """Device of JAX."""

    has_memory = True
    has_streams = True

    def __init__(self, driver_type: type[TableDriver], device: Any) -> None:
        super().__init__(driver_type)
        self._device = device

    def create_context(self, options: OptionValues) -> Context:
        return XlaContext(self._driver(options), self._device)

    def allocate(self, nbytes: int) -> Memory:
        return XlaMemory(self._device, nbytes)

    def from_dlpack(self, tensor: Any) -> DeviceTensor | None:
        return copied_from_dlpack(tensor, self._device)

    def create_stream(self) -> Stream:
        return XlaStream()

    def create_event(self) -> Event:
        return XlaEvent()

    def memory_statistics(self) -> MemoryStatistics | None:
        statistics = self._device.memory_stats()
        if not statistics:
            return None
        return MemoryStatistics(
            total_bytes=statistics["bytes_limit"],
            used_bytes=statistics["bytes_in_use"],
            peak_bytes=statistics["peak_bytes_in_use"],
            allocations=statistics.get("num_allocs"),
        )


def _rows(kind: str) -> Iterator[DeviceInfo]:
    row = DeviceInfo(name=f"xla:{kind}", vendor="XLA", type=KINDS[kind])
    platform_devices: Sequence[Any] = ()
    if has_extra(EXTRA):
        try:
            platform_devices = present(kind)
        except DeviceUnavailableError as error:
            yield replace(row, available=False, reason=str(error))
            return
        reason = _missing(kind, len(platform_devices))
    else:
        reason = str(missing(row.name))
    if not platform_devices:
        yield replace(row, available=False, reason=reason, installable=_NEEDS[kind].met_by(Machine()))
    for number, device in enumerate(platform_devices):
        name = row.name if number == 0 else f"{row.name}.{number}"
        yield replace(row, name=name, sub_type=str(device.device_kind), version=version())


def _missing(kind: str, count: int) -> str:
    return f"JAX finds {count or 'no'} {kind} on this machine; {_HOW_TO_GET[kind]}"
