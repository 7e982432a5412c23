"""The driver and its devices: the way in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceType,
    ModelForm,
    OpenSizes,
    OperationRows,
    OperationSupport,
    OptionValues,
    Threading,
)
from nnadapter.drivers.interface import Context, Device, Driver
from nnadapter.drivers.openvino.context import OpenvinoContext
from nnadapter.drivers.openvino.engine import EXTRA, core, missing, translated, version
from nnadapter.drivers.openvino.options import options_of
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError
from nnadapter.process.extras import has_extra

KINDS = {"CPU": DeviceType.CPU, "GPU": DeviceType.GPU, "NPU": DeviceType.ACCELERATOR}
"""The engine's kinds of devices that are offered, first choice first."""

_LIMITS = (
    "Shapes are known and no tensor is empty. NaN in an input may come out as a number, since the engine's maximum, "
    "comparison and softmax do not pass it on."
)
_HOW_TO_GET = {
    "CPU": "install the package openvino again",
    "GPU": "install the driver of Intel's graphics (Level Zero or OpenCL), or choose openvino:CPU",
    "NPU": "install the driver of Intel's NPU (intel-npu-driver), or choose openvino:CPU",
}


class OpenvinoDevice(Device):
    """One device of the engine."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def capability(self) -> Capability:
        """See `Device.capability`."""
        return self._capability

    def create_context(self, options: OptionValues) -> Context:
        """See `Device.create_context`."""
        return OpenvinoContext(self._name, options, self._properties)

    @cached_property
    def _properties(self) -> frozenset[str]:
        """Names of the properties that the device understands and that may be set."""
        with translated(f"OpenVINO's {self._name} did not open", "update its driver", DeviceUnavailableError):
            return frozenset(map(str, core().get_property(self._name, "SUPPORTED_PROPERTIES")))

    @cached_property
    def _capability(self) -> Capability:
        with translated(f"OpenVINO's {self._name} did not open", "update its driver", DeviceUnavailableError):
            abilities = frozenset(map(str, core().get_property(self._name, "OPTIMIZATION_CAPABILITIES")))
        return Capability(
            form=ModelForm.ONNX,
            threading=Threading.EXCLUSIVE,
            open_sizes=OpenSizes.ANY if self._name == "CPU" else OpenSizes.NONE,
            takes_references=True,
            options=options_of(abilities, self._properties),
            operations=OperationRows(_operations),
            limits=_LIMITS,
        )


def _operations() -> Iterator[OperationSupport]:
    from nnadapter.drivers.openvino.operators import OPERATORS  # a program that is loaded needs no table

    for name, row in sorted(OPERATORS.items()):
        yield OperationSupport(type=f"ai.onnx::{name}", dtypes=row.dtypes, ranks=(0, 8), limits=row.limits)


class OpenvinoDriver(Driver):
    """Offers the devices of Intel's engine."""

    def open(self, device_id: str) -> OpenvinoDevice:
        """See `Driver.open`: `CPU`, `GPU`, `NPU`, or as the engine numbers several, `GPU.1`; the CPU if empty.

        Raises:
            DeviceNotFoundError: the engine has no such kind of device.
            MissingDeviceExtraError, DeviceUnavailableError: the package or the device is not there.
        """
        name = device_id or "CPU"
        kind = name.partition(".")[0]
        if kind not in KINDS:
            offered = ", ".join(f"openvino:{device_kind}" for device_kind in KINDS)
            raise DeviceNotFoundError(f"openvino has no device {device_id!r}; choose one of {offered}")
        if not has_extra(EXTRA):
            raise missing(f"openvino:{name}")
        reason = "" if _is_there(name) else _missing(name)
        if reason:
            raise DeviceUnavailableError(f"device 'openvino:{name}' cannot be used: {reason}")
        return OpenvinoDevice(name)

    def devices(self) -> Sequence[DeviceInfo]:
        """See `Driver.devices`."""
        present = _present()
        return [row for kind in KINDS for row in _rows(kind, present)]


def _rows(kind: str, present: Sequence[str]) -> Sequence[DeviceInfo]:
    device_names = [name for name in present if name.partition(".")[0] == kind] or [kind]
    return [_row(name, KINDS[kind]) for name in device_names]


def _row(name: str, type_: DeviceType) -> DeviceInfo:
    reason = _missing(name)
    row = DeviceInfo(name=f"openvino:{name}", vendor="OpenVINO", type=type_)
    if reason:
        from nnadapter.drivers.openvino.needs import is_possible  # of a device that is there, nobody asks

        return replace(row, available=False, reason=reason, possible=is_possible(name.partition(".")[0]))
    return replace(
        row,
        sub_type=str(core().get_property(name, "FULL_DEVICE_NAME")),
        version=version(),
    )


def _is_there(name: str) -> bool:
    """Whether a device answers: the others need not be looked for, and their libraries not loaded, to know that.

    Of numbers, the engine knows only by looking: its CPU answers to any.
    """
    try:
        return "." not in name and bool(core().get_property(name, "FULL_DEVICE_NAME"))
    except Exception:  # noqa: BLE001  the engine raises whatever it likes; why it is not there is said by `_missing`
        return False


def _missing(name: str) -> str:
    """Why a device is not there and what to do about it; empty if it is."""
    if not has_extra(EXTRA):
        return str(missing(f"openvino:{name}"))
    try:
        present = _present()
    except DeviceUnavailableError as error:
        return str(error)
    kind, _, number = name.partition(".")
    if name in present or (not number and any(device_name.startswith(f"{kind}.") for device_name in present)):
        return ""
    return f"OpenVINO finds no {name} on this machine, only {', '.join(present) or 'nothing'}; {_HOW_TO_GET[kind]}"


def _present() -> list[str]:
    """The engine's devices on this machine; none where it is not installed."""
    return list(map(str, core().available_devices)) if has_extra(EXTRA) else []
