"""The typed options of `qnn`, and the provider's own that they stand for.

Source: the option names are those of ONNX Runtime's QNN execution provider; numbers of chips are the QNN SDK's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nnadapter.drivers.capability import Option, OptionValues
from nnadapter.drivers.execution_providers.backing import OPTIONS as SHARED
from nnadapter.errors import InvalidOptionError

EMULATED_SOC = 43
"""The chip that the emulator compiles for unless told otherwise: SM8550, Snapdragon 8 Gen 2."""
_ARCHITECTURE_OF_SOC = MappingProxyType({30: "68", 36: "69", 43: "73", 57: "75", 60: "73", 69: "79"})
"""Of chips whose generation of the NPU is published."""

OPTIONS = (
    Option(name="backend", default="htp", choices=("htp", "gpu"), help="Which of the chip's processors computes."),
    Option(
        name="soc_model",
        default=0,
        minimum=0,
        help=f"The QNN SDK's number of the chip to compile for; 0 for this machine's, {EMULATED_SOC} in the emulator.",
    ),
    Option(
        name="htp_arch",
        default="auto",
        choices=("auto", "68", "69", "73", "75", "79", "81"),
        help="The NPU's generation, where the chip's number is not known; auto leaves it to the chip.",
    ),
    Option(name="float16", default=True, help="Whether float32 is computed in half precision, as the NPU does it."),
    Option(
        name="quantizes",
        default=True,
        help="Whether the NPU quantizes a segment's inputs and dequantizes its outputs; else ONNX Runtime's CPU would.",
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
        help="The NPU's clocks.",
    ),
    Option(
        name="finalization",
        default="0",
        choices=("0", "1", "2", "3"),
        help="How much the compiler works: more takes longer to compile and runs faster.",
    ),
    Option(name="vtcm_mb", default=0, minimum=0, help="MiB of the NPU's fast memory for a graph; 0 leaves it to QNN."),
    *(option for option in SHARED if option.name != "library"),
)
"""What the device `qnn` understands."""


def own_options(typed_options: OptionValues, library: str, *, emulated: bool) -> dict[str, str]:
    """Return the provider's own options.

    Args:
        typed_options: the typed options.
        library: path of the backend's library.
        emulated: no NPU is here, so that the emulator computes.

    Raises:
        InvalidOptionError: options contradict each other.
    """
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
    # QNN refuses to start with half precision on and the chip's number unknown, although that is its default.
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
"""Ours and the provider's name."""
_LEFT_OUT = ("auto", "default", "0", 0)


def _check_architecture(soc: int, architecture: str) -> None:
    """QNN takes the chip's number where both are given, and says so only in its log."""
    soc_architecture = _ARCHITECTURE_OF_SOC.get(soc, architecture)
    if architecture != "auto" and soc_architecture != architecture:
        raise InvalidOptionError(
            f"htp_arch {architecture} is not that of soc_model {soc}, which is {soc_architecture}, and QNN would "
            "ignore it; "
            "give one of the two"
        )
