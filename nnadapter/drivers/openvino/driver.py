"""Driver `openvino`: devices, options and contexts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceType,
    DynamicShapes,
    ModelForm,
    OperationRows,
    OperationSupport,
    Option,
    OptionValues,
    Precision,
    Threading,
    precisions_of,
)
from nnadapter.drivers.interface import Admission, Compatibility, Context, Device, Driver, Program
from nnadapter.drivers.openvino.engine import EXTRA, PRECISIONS, core, default_precision, missing, translated, version
from nnadapter.drivers.openvino.program import compatibility, deserialized
from nnadapter.drivers.registry import HardwareNeeds, Machine
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError, close_names
from nnadapter.process.packages import has_extra
from nnadapter.records import replace
from partition.graph import Verdict

if TYPE_CHECKING:
    import onnx

    from nnadapter.drivers.openvino.compiler import Asker


_HINTS = {"latency": "LATENCY", "throughput": "THROUGHPUT"}


_QUANTIZED = ("w8a8", "w8", "w4a16")


def floating_precisions(abilities: frozenset[str]) -> tuple[str, ...]:
    """Return the floating precisions of a device."""
    return tuple(dtype for dtype, (ability, _) in PRECISIONS.items() if ability in abilities) or ("float32",)


def options_of(abilities: frozenset[str], properties: frozenset[str]) -> tuple[Option, ...]:
    """Return the options of a device."""
    choices = floating_precisions(abilities)
    threads = Option(name="threads", default=0, minimum=0, help="Threads of one program; 0 for the engine's default.")
    return (
        Option(
            name="precision",
            default=choices[0],
            choices=choices,
            help="Data type of floating-point computation. Default: float32 if the device supports it.",
        ),
        *((threads,) if "INFERENCE_NUM_THREADS" in properties else ()),
        Option(
            name="performance_hint",
            default="latency",
            choices=tuple(_HINTS),
            help="Goal of the engine's optimization: latency of one run, or throughput of many.",
        ),
        Option(name="switched_off", default=(), help="ONNX op types to refuse (Resize, Erf).", affects_speed=False),
    )


def properties_of(options: OptionValues, understood: frozenset[str]) -> Mapping[str, Any]:
    """Convert option values into properties of the engine; omit properties that are not in `understood`.

    The precision float32 selects accuracy mode, which also forbids quantization.
    """
    precision = str(options["precision"])
    exact = precision == "float32"
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[precision][1],
        "EXECUTION_MODE_HINT": "ACCURACY" if exact else "PERFORMANCE",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "PERFORMANCE_HINT": _HINTS[str(options["performance_hint"])],
    }
    if options.get("threads"):
        properties["INFERENCE_NUM_THREADS"] = str(options["threads"])
    return {name: value for name, value in properties.items() if name in understood}


def op_types_named(names: Collection[str]) -> frozenset[str]:
    """Return the op types of the option `switched_off`; raise InvalidOptionError for an unknown one."""
    if not names:
        return frozenset()
    from nnadapter.drivers.openvino.operators import OPERATORS  # lazy: few sessions switch ops off

    for name in names:
        if name not in OPERATORS:
            raise InvalidOptionError(
                f"option switched_off names {name!r}, none of the {len(OPERATORS)} op types that openvino supports; "
                f"{close_names(name, OPERATORS)}"
            )
    return frozenset(names)


class OpenvinoContext(Context):
    """OpenVINO device with options. The compiler is imported lazily."""

    def __init__(self, device: str, options: OptionValues, understood: frozenset[str]) -> None:
        self._device = device
        self._properties = properties_of(options, understood)
        self._switched_off = op_types_named(options["switched_off"])  # type: ignore[arg-type]

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        return self._asker.supported(model)

    def admit(self, model: onnx.ModelProto) -> Admission:
        return self._asker.admit(model)

    def compile(self, model: onnx.ModelProto) -> Program:
        return self._asker.compile(model, self._seal())

    def deserialize(self, blob: bytes) -> Program:
        return deserialized(blob, self._seal())

    def deserialize_view(self, blob: memoryview) -> Program:
        return deserialized(blob, self._seal(), is_checked=True)

    def check_blob(self, blob: memoryview) -> Compatibility:
        return compatibility(blob, self._seal())

    def _seal(self) -> dict[str, Any]:
        return {"device": self._device, "engine": version(), "properties": dict(self._properties)}

    @cached_property
    def _asker(self) -> Asker:
        from nnadapter.drivers.openvino.compiler import Asker

        return Asker(self._device, self._properties, self._switched_off)


_SYSTEMS = ("Linux", "Windows")
_NEEDS = {
    "CPU": HardwareNeeds((*_SYSTEMS, "Darwin")),
    "GPU": HardwareNeeds(_SYSTEMS, ("sys/class/drm/*/device/vendor",), "0x8086"),
    "NPU": HardwareNeeds(_SYSTEMS, ("sys/class/accel/*/device/vendor",), "0x8086"),
}
"""0x8086: Intel's PCI vendor ID."""


KINDS = {"CPU": DeviceType.CPU, "GPU": DeviceType.GPU, "NPU": DeviceType.ACCELERATOR}

_LIMITS = (
    "Static shapes, and no empty tensors. NaN in an input may become a number, because the engine's "
    "maximum, comparison and softmax do not propagate it."
)
_HOW_TO_GET = {
    "CPU": "install the package openvino again",
    "GPU": "install the driver of Intel's graphics (Level Zero or OpenCL), or choose openvino:CPU",
    "NPU": "install the driver of Intel's NPU (intel-npu-driver), or choose openvino:CPU",
}


class OpenvinoDevice(Device):
    """Device of OpenVINO."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def capability(self) -> Capability:
        abilities = self._names("OPTIMIZATION_CAPABILITIES")
        floating, default = floating_precisions(abilities), default_precision(self._name)
        return Capability(
            form=ModelForm.ONNX,
            threading=Threading.EXCLUSIVE,
            dynamic_shapes=DynamicShapes.ANY if self._name == "CPU" else DynamicShapes.NONE,
            supports_external_initializers=True,
            precisions=precisions_of(" ".join((*floating, *(_QUANTIZED if "INT8" in abilities else ())))),
            default_precision=Precision(default if default in floating else floating[0]),
            options=options_of(abilities, self._properties),
            operations=OperationRows(_operations),
            limits=_LIMITS,
        )

    def create_context(self, options: OptionValues) -> Context:
        return OpenvinoContext(self._name, options, self._properties)

    @cached_property
    def _properties(self) -> frozenset[str]:
        return self._names("SUPPORTED_PROPERTIES")

    def _names(self, engine_property: str) -> frozenset[str]:
        with translated(f"OpenVINO's {self._name} did not open", "update its driver", DeviceUnavailableError):
            return frozenset(map(str, core().get_property(self._name, engine_property)))


def _operations() -> Iterator[OperationSupport]:
    from nnadapter.drivers.openvino.operators import OPERATORS  # lazy: deserialized programs need no table

    for name, row in sorted(OPERATORS.items()):
        yield OperationSupport(type=f"ai.onnx::{name}", dtypes=row.dtypes, ranks=(0, 8), limits=row.limits)


class OpenvinoDriver(Driver):
    """Driver of OpenVINO's devices."""

    def open(self, device_id: str) -> OpenvinoDevice:
        """Open `CPU`, `GPU`, `NPU`, or a numbered device such as `GPU.1`; CPU if `device_id` is empty.

        Raises:
            DeviceNotFoundError: the engine has no such kind of device.
            MissingDeviceExtraError, DeviceUnavailableError: the package or the device is missing.
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
        present = _present()
        names = {kind: [name for name in present if name.partition(".")[0] == kind] or [kind] for kind in KINDS}
        return [_row(name, kind) for kind in KINDS for name in names[kind]]


def _row(name: str, kind: str) -> DeviceInfo:
    reason = _missing(name)
    row = DeviceInfo(name=f"openvino:{name}", vendor="OpenVINO", type=KINDS[kind])
    if reason:
        return replace(row, available=False, reason=reason, installable=_NEEDS[kind].met_by(Machine()))
    return replace(row, sub_type=str(core().get_property(name, "FULL_DEVICE_NAME")), version=version())


def _is_there(name: str) -> bool:
    """Check whether a device responds, without loading the libraries of other devices.

    False for names with a number, such as `GPU.1`: a response proves nothing, because the CPU responds to any number.
    """
    try:
        return "." not in name and bool(core().get_property(name, "FULL_DEVICE_NAME"))
    except Exception:  # noqa: BLE001  `_missing` explains
        return False


def _missing(name: str) -> str:
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
    return list(map(str, core().available_devices)) if has_extra(EXTRA) else []
