"""Driver `qnn`: ONNX Runtime's QNN provider for Qualcomm NPUs and GPUs, with typed options.

Sources: option names of the QNN execution provider; chip numbers of the QNN SDK.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    ModelForm,
    Option,
    OptionValues,
    Precision,
    Threading,
    precisions_of,
)
from nnadapter.drivers.execution_providers.backing import OPTIONS as SHARED
from nnadapter.drivers.execution_providers.backing import (
    Backing,
    LibrarySource,
    find_backing,
    installed,
    takes_addition,
)
from nnadapter.drivers.execution_providers.driver import EpContext
from nnadapter.drivers.interface import Context, Device, Driver
from nnadapter.drivers.providers import NEEDS
from nnadapter.drivers.registry import Machine
from nnadapter.errors import (
    DeviceNotFoundError,
    DeviceUnavailableError,
    InvalidOptionError,
    MissingDeviceExtraError,
    MissingExtraError,
)
from nnadapter.process.packages import missing_extra
from nnadapter.process.terminal import native_prints_to_stderr
from nnadapter.records import replace

EMULATED_SOC = 43
"""SM8550, Snapdragon 8 Gen 2."""
_ARCHITECTURE_OF_SOC = MappingProxyType({30: "68", 36: "69", 43: "73", 57: "75", 60: "73", 69: "79"})

OPTIONS = (
    Option(name="backend", default="htp", choices=("htp", "gpu"), help="Processor of the chip."),
    Option(
        name="soc_model",
        default=0,
        minimum=0,
        help=f"Number of the chip in the QNN SDK; 0 for the chip of this machine, {EMULATED_SOC} in the emulator.",
    ),
    Option(
        name="htp_arch",
        default="auto",
        choices=("auto", "68", "69", "73", "75", "79", "81"),
        help="Generation of the NPU if the chip's number is unknown; auto derives it from the chip.",
    ),
    Option(name="float16", default=True, help="Compute float32 in half precision, as the NPU does."),
    Option(
        name="quantizes",
        default=True,
        help="Quantize inputs and dequantize outputs of a segment on the NPU instead of the CPU.",
    ),
    Option(
        name="performance_mode",
        default="default",
        choices=(
            "default",
            "burst",
            "balanced",
            "high_performance",
            "high_power_saver",
            "low_balanced",
            "low_power_saver",
            "power_saver",
            "extreme_power_saver",
            "sustained_high_performance",
        ),
        help="Clocks of the NPU: faster, or with less power.",
    ),
    Option(
        name="finalization",
        default="0",
        choices=("0", "1", "2", "3"),
        help="Optimization effort of the compiler: higher compiles longer and runs faster.",
    ),
    Option(name="vtcm_mb", default=0, minimum=0, help="MiB of fast NPU memory per graph; 0 for QNN's default."),
    *(option for option in SHARED if option.name != "library"),
)


def own_options(typed_options: OptionValues, library: str, *, emulated: bool) -> dict[str, str]:
    """Convert the driver's typed options into QNN's own; `emulated` means that there is no NPU."""
    on_npu = typed_options["backend"] == "htp"
    soc = int(str(typed_options["soc_model"])) or (EMULATED_SOC if emulated and on_npu else 0)
    _check_architecture(soc, str(typed_options["htp_arch"]))
    provider_options = {
        "backend_path": library,
        "offload_graph_io_quantization": str(int(not typed_options["quantizes"])),
    }
    if not on_npu:
        return provider_options
    if soc:
        provider_options["soc_model"] = str(soc)
    # QNN does not start with half precision, its default, on an unknown chip.
    if soc or not typed_options["float16"]:
        provider_options["enable_htp_fp16_precision"] = str(int(bool(typed_options["float16"])))
    return provider_options | {
        name: str(typed_options[ours]) for ours, name in _SIMPLE.items() if typed_options[ours] not in _LEFT_OUT
    }


_SIMPLE: Mapping[str, str] = {
    "htp_arch": "htp_arch",
    "performance_mode": "htp_performance_mode",
    "finalization": "htp_graph_finalization_optimization_mode",
    "vtcm_mb": "vtcm_mb",
}
_LEFT_OUT = ("auto", "default", "0", 0)


def _check_architecture(soc: int, architecture: str) -> None:
    soc_architecture = _ARCHITECTURE_OF_SOC.get(soc, architecture)
    if architecture != "auto" and soc_architecture != architecture:
        raise InvalidOptionError(
            f"htp_arch {architecture} contradicts soc_model {soc}, which has {soc_architecture}; QNN would "
            "ignore it; "
            "give only one of the two options"
        )


PROVIDER = "QNNExecutionProvider"
_CAPABILITY = Capability(
    form=ModelForm.ONNX,
    threading=Threading.SERIAL,
    precisions=precisions_of("float16 w8a8 w8a16", full_graph=True),
    default_precision=Precision.FLOAT16,
    options=OPTIONS,
    limits="nodes that QNN's graph assignment accepts, with static shapes; a verdict requires compilation",
)


class QnnDriver(Driver):
    """Driver of Qualcomm accelerators, or of the emulator."""

    def open(self, device_id: str) -> Device:
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"qnn has no device {device_id!r}, only '0'; write qnn or qnn:0")
        package = installed().get(PROVIDER)
        if package is None:
            raise _missing()
        return QnnDevice(package)

    def devices(self) -> Sequence[DeviceInfo]:
        package = installed().get(PROVIDER)
        row = DeviceInfo(name="qnn", vendor="Qualcomm", sub_type="HTP, GPU")
        if package is None:
            possible = NEEDS[PROVIDER].met_by(Machine())
            return (replace(row, available=False, reason=str(_missing()), installable=possible),)
        return (replace(row, version=package.distribution.rpartition(" ")[2], distribution=package.distribution),)


def _missing() -> MissingExtraError:
    return missing_extra("qnn", "device 'qnn'", MissingDeviceExtraError)


class QnnDevice(Device):
    """Qualcomm accelerator."""

    capability = _CAPABILITY

    def __init__(self, package: LibrarySource) -> None:
        self._package = package

    def create_context(self, options: OptionValues) -> Context:
        """Create a context.

        Raises:
            DeviceUnavailableError: QNN does not load, or has no device here.
            InvalidOptionError: QNN cannot run even an addition with these options.
        """
        base_backing = find_backing(PROVIDER, {**options, "library": ""})
        emulated = all(device.device.type.name != "NPU" for device in base_backing.devices)
        qnn_options = own_options(options, self._backend(str(options["backend"])), emulated=emulated)
        backing = replace(base_backing, options={**qnn_options, **base_backing.options})
        with native_prints_to_stderr() if emulated else nullcontext():  # the emulator prints a greeting
            if not takes_addition(backing):
                raise InvalidOptionError(_dropped(backing))
        return EpContext(backing)

    def _backend(self, name: str) -> str:
        module = importlib.import_module(self._package.module)
        path = str(getattr(module, f"get_qnn_{name}_path")())
        if not Path(path).is_file():
            raise DeviceUnavailableError(
                f"backend {name!r} of qnn is not in {self._package.distribution}, which has no {path!r}; "
                "choose another backend"
            )
        return path


def _dropped(backing: Backing) -> str:
    guilty = [name for name in backing.options if name != "backend_path" and _works_without(backing, name)]
    if not guilty:
        return (
            "QNN supports nothing on this machine, not even an addition, and ONNX Runtime would compute "
            f"everything on the CPU; the hardware or driver for {Path(backing.options['backend_path']).name} is "
            "missing; choose another backend"
        )
    named = ", ".join(f"{name}={backing.options[name]}" for name in guilty)
    return (
        f"QNN supports nothing with {named}, not even an addition, and ONNX Runtime would compute everything on "
        "the CPU; remove these options, or use the QNN SDK's values for your chip (soc_model 43 is Snapdragon 8 Gen 2)"
    )


def _works_without(backing: Backing, name: str) -> bool:
    remaining_options = {key: value for key, value in backing.options.items() if key != name}
    try:
        return takes_addition(replace(backing, options=remaining_options))
    except InvalidOptionError as error:
        return "soc_model" in str(error) and name == "soc_model"
