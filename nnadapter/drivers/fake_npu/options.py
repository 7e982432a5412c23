"""Options of a context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from nnadapter.drivers.capability import Option, OptionValues, Profile
from nnadapter.drivers.fake_npu.limits import Arithmetic
from nnadapter.errors import InvalidOptionError, near_names

DEFAULT_MEMORY_BYTES = 4 << 30
_HARDWARE: Mapping[str, tuple[float, float, str]] = {
    "peak_gflops": (1000.0, 0.001, "billions of floating-point operations per second; twice as many with float16."),
    "bandwidth_gbs": (30.0, 0.001, "gigabytes per second to and from its own memory."),
    "launch_us": (100.0, 0.0, "microseconds to start a segment."),
    "transfer_gbs": (5.0, 0.001, "gigabytes per second between host and device."),
}
"""Option of the simulated hardware -> default, minimum and help text."""


def _option(name: str, default: Any, text: str, *, affects_speed: bool = True, **limits: Any) -> Option:
    return Option(name=name, default=default, help=text, affects_speed=affects_speed, **limits)


_REFUSED = (
    "Operations to refuse: adapter IR types (RESIZE_LINEAR) or ONNX op types (Resize, for all its adapter IR types)."
)
_MEMORY = "Bytes of device memory for weights, the arena, inputs and outputs of one segment."
_PRECISION = (
    "With float16, weights and the results of all instructions are rounded to half precision, except float64; "
    "weights beyond its range saturate."
)
_THREADS = "Maximum BLAS threads of the whole process while a segment runs; 0 for no limit."
_DUMP = "Folder to which every model is written as text, before the passes and after each; slower."
_CHECK = "Run every model before and after each pass with random numbers, and compare; much slower."
_CLOCK = "With simulated, costs and reports use the time of the simulated hardware."
OPTIONS = (
    _option("switched_off", (), _REFUSED, affects_speed=False),
    _option("memory_bytes", DEFAULT_MEMORY_BYTES, _MEMORY, minimum=0, affects_speed=False),
    _option("precision", "float32", _PRECISION, choices=("float32", "float16")),
    _option("threads", 0, _THREADS, minimum=0),
    _option("dump_passes", "", _DUMP, affects_speed=False),
    _option("check_passes", False, _CHECK, affects_speed=False),
    _option("clock", "real", _CLOCK, choices=("real", "simulated")),
    *(
        _option(name, default, f"Simulated hardware: {meaning}", minimum=minimum, affects_speed=False)
        for name, (default, minimum, meaning) in _HARDWARE.items()
    ),
)

_ONNX_NAMES = {
    "CausalConvWithState": "CAUSAL_CONV",
    "Dropout": "ASSIGN",
    "Flatten": "RESHAPE",
    "FlexAttention": "ATTENTION",
    "Gemm": "FULLY_CONNECTED MAT_MUL",
    "GlobalAveragePool": "REDUCE_MEAN",
    "GlobalMaxPool": "REDUCE_MAX",
    "Identity": "ASSIGN",
    "LRN": "LOCAL_RESPONSE_NORMALIZATION",
    "Squeeze": "RESHAPE",
    "Unsqueeze": "RESHAPE",
}
"""ONNX op type -> adapter IR types with other names. Switching the op off refuses all operations of these types."""


class FakeNpuOptions(NamedTuple):
    """Parsed options."""

    switched_off: frozenset[str]
    memory_bytes: int
    arithmetic: Arithmetic
    threads: int
    dump_passes: str
    check_passes: bool
    profile: Profile | None


def read_options(options: OptionValues) -> FakeNpuOptions:
    """Parse option values; raise InvalidOptionError for unknown operations, unusable folders or infinite parameters."""
    values: Mapping[str, Any] = options
    folder, is_half, profile = values["dump_passes"], values["precision"] == "float16", None
    switched_off = operations_named(values["switched_off"])
    try:
        if folder:  # fail before anything is compiled
            Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"option dump_passes is {folder!r}, but this folder cannot be created: {error}; name a writable folder"
        raise InvalidOptionError(text) from error
    if values["clock"] == "simulated":
        from nnadapter.drivers.fake_npu.clock import simulated_profile  # lazy: few sessions simulate

        for name in _HARDWARE:
            if not isfinite(values[name]):
                text = f"option {name!r} of device 'fake_npu' is {float(values[name])}, expected a finite number"
                raise InvalidOptionError(text)
        profile = simulated_profile(**{name: float(values[name]) for name in _HARDWARE}, half_precision=is_half)
    arithmetic, (memory, threads) = Arithmetic(is_half), (int(values["memory_bytes"]), int(values["threads"]))
    return FakeNpuOptions(switched_off, memory, arithmetic, threads, folder, bool(values["check_passes"]), profile)


def operations_named(names: Iterable[str]) -> frozenset[str]:
    """Return the adapter IR types that `switched_off` selects; raise InvalidOptionError for unknown names.

    Case and underscores are ignored. A family such as Resize selects all of its types.
    """
    if not names:
        return frozenset()
    types_by_key, operation_types = _types_by_key(), set[str]()
    for name in names:
        key = name.replace("_", "").lower()
        if key not in types_by_key:
            types = {type_ for types in types_by_key.values() for type_ in types}
            hint = near_names(name, types) or "`nnadapter ops fake_npu` lists its operations"
            raise InvalidOptionError(f"option switched_off has {name!r}, which is no operation of fake_npu; {hint}")
        operation_types.update(types_by_key[key])
    return frozenset(operation_types)


def _types_by_key() -> Mapping[str, list[str]]:
    from nnadapter.drivers.fake_npu.operations import OPERATIONS  # lazy: loads all operations

    types_by_key: dict[str, list[str]] = {}
    for type_ in OPERATIONS:
        family = type_.replace("_2D", "").removesuffix("_NEAREST").removesuffix("_LINEAR")
        for key in {name.replace("_", "").lower() for name in (type_, family)}:
            types_by_key.setdefault(key, []).append(type_)
    for name, types in _ONNX_NAMES.items():
        types_by_key.setdefault(name.lower(), types.split())
    return types_by_key
