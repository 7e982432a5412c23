"""Device capabilities: limits, options, supported operations and speed, as frozen values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, overload

from nnadapter.ir.operand import DataType
from nnadapter.records import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Speed that a device attains, which may be below its data sheet.

    An operation takes `operation_seconds` plus the longer of FLOP / peak and bytes / bandwidth. A segment adds
    `launch_seconds` and, for each input and output, `transfer_seconds` plus bytes / `transfer_bandwidth`. A
    multiply-add counts as two FLOP.

    Sources: Williams, Waterman, Patterson: Roofline (CACM 2009); Hockney's model of messages (`r`-infinity, `n`-half).
    """

    peak_flops: float
    """FLOP per second for data types that `peak_of_dtype` does not list."""
    bandwidth: float
    """Bytes per second between compute units and device memory."""
    launch_seconds: float
    """Overhead of one nearly empty segment, without transfers."""
    transfer_seconds: float
    """Overhead of one transferred tensor, in either direction."""
    transfer_bandwidth: float
    """Bytes per second in either direction."""
    operation_seconds: float = 0.0
    """Overhead of one operation."""
    peak_of_dtype: Mapping[str, float] = field(default_factory=dict)
    """Data type of an operation's first input -> operations per second."""
    boundary_dtypes: frozenset[str] | None = None
    """Data types transferred unchanged; None for all. The driver converts others on the host, which costs time."""
    channels_last: bool = False
    """Transferred tensors of rank 4 are reordered from or to channels-last."""
    host_memory: bool = False
    """The device computes in host memory, so transfers cost nothing."""
    simulated: bool = False
    """True for a simulator; limits and clock are then of the simulated hardware."""


def flaw(profile: object) -> str:
    """Return the error in a driver's profile, as half a sentence; empty if valid."""
    if not isinstance(profile, Profile):
        return f"it is {type(profile).__name__}, expected a nnadapter.drivers.Profile"
    for entry in fields(Profile):
        wrong = _WRONG[entry.name](getattr(profile, entry.name))
        if wrong:
            return f"{entry.name} is {getattr(profile, entry.name)!r}, expected {wrong}"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _rate(value: object) -> str:
    return "" if _is_number(value) and value > 0 else "a finite number above 0"  # type: ignore[operator]


def _time(value: object) -> str:
    return "" if _is_number(value) and value >= 0 else "finite seconds, 0 or more"  # type: ignore[operator]


def _flag(value: object) -> str:
    return "" if isinstance(value, bool) else "True or False"


def _rates(value: object) -> str:
    right = isinstance(value, Mapping) and all(name in _DTYPES and not _rate(rate) for name, rate in value.items())
    return "" if right else "a mapping from data types to finite numbers above 0"


def _names(value: object) -> str:
    right = value is None or (
        isinstance(value, (frozenset, set, tuple, list)) and all(name in _DTYPES for name in value)
    )
    return "" if right else f"None or a frozenset of data types out of {', '.join(sorted(_DTYPES))}"


_DTYPES = frozenset(dtype.value for dtype in DataType)
_WRONG = {
    "peak_flops": _rate,
    "bandwidth": _rate,
    "launch_seconds": _time,
    "transfer_seconds": _time,
    "transfer_bandwidth": _rate,
    "operation_seconds": _time,
    "peak_of_dtype": _rates,
    "boundary_dtypes": _names,
    "channels_last": _flag,
    "host_memory": _flag,
    "simulated": _flag,
}


class DeviceType(StrEnum):
    """Kind of hardware. Source: NNAdapterDeviceTypeCode."""

    CPU = "cpu"
    GPU = "gpu"
    ACCELERATOR = "accelerator"


class ModelForm(StrEnum):
    """Form of the segments that a device compiles."""

    IR = "ir"
    """The adapter IR: `nnadapter.ir.Model`."""
    ONNX = "onnx"
    """ONNX subgraph: `onnx.ModelProto` with all constants."""


class Precision(StrEnum):
    """Number formats of computation. `w8a8` has 8-bit weights and 8-bit activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    W8A8 = "w8a8"
    W8A16 = "w8a16"
    W8 = "w8"
    """8-bit weights; activations stay floating."""
    W4A16 = "w4a16"
    """4-bit weights; activations stay floating."""

    @property
    def is_floating(self) -> bool:
        """True for float32, bfloat16 and float16. Devices have these; quantized precisions are part of the model."""
        return self in _FLOATING


_FLOATING = (Precision.FLOAT32, Precision.BFLOAT16, Precision.FLOAT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePrecision:
    """Supported precision, with its limits if it is quantized."""

    precision: Precision
    per_channel: bool = True
    """Weights may have a scale per channel."""
    asymmetric: bool = True
    """Zero points may differ from 0."""
    full_graph: bool = False
    """Every node of a segment must be quantized."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "precision": self.precision.value}


def precisions_of(names: str, *, full_graph: bool = False) -> tuple[ComputePrecision, ...]:
    """Return precisions by names; `full_graph` applies to those with integer activations."""
    return tuple(
        ComputePrecision(precision=Precision(name), full_graph=full_graph and name in ("w8a8", "w8a16"))
        for name in names.split()
    )


class Threading(StrEnum):
    """Concurrency that a device allows; the host keeps to it."""

    REENTRANT = "program re-entrant"
    """Several threads may compute with one execution at once."""
    EXCLUSIVE = "execution exclusive"
    """Executions of one program may compute at once, each in one thread at a time."""
    SERIAL = "device serial"
    """One computation at a time on the entire device."""


class DeviceRole(StrEnum):
    """Role of a device in a session. External drivers are always accelerators."""

    ACCELERATOR = "accelerator"
    """Gets supported nodes, in the order of requested devices."""
    HOST = "host"
    """Runs nodes that no other device supports, and work that failed elsewhere. Always present."""
    LAST_RESORT = "last resort"
    """Runs nodes that even the host refuses."""

    @property
    def accelerates(self) -> bool:
        """True if nodes on such a device count as delegated."""
        return self is DeviceRole.ACCELERATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Typed option of a device."""

    name: str
    default: bool | int | float | str | tuple[str, ...]
    """Defines the type. A tuple of strings can also be passed as comma-separated text."""
    help: str
    """One sentence."""
    choices: tuple[str, ...] = ()
    """Allowed strings; empty for any."""
    minimum: int | float | None = None
    """Smallest allowed number."""
    affects_speed: bool = True
    """True if the option may change the speed. Calibrations are stored per value."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": "list" if isinstance(self.default, tuple) else type(self.default).__name__,
            "default": self.default,
            "choices": self.choices,
            "minimum": self.minimum,
            "help": self.help,
        }


OptionValue = bool | int | float | str | tuple[str, ...]
OptionValues = Mapping[str, OptionValue]
"""All options of a device, validated, with defaults."""
PRECISION = "precision"
"""Option of devices with several floating precisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSupport:
    """Row of `nnadapter ops DEVICE`."""

    type: str
    """Operation of the adapter IR, or `domain::op_type` for ONNX."""
    dtypes: frozenset[DataType]
    """Data types of the first input."""
    ranks: tuple[int, int]
    """Smallest and largest rank, inclusive."""
    limits: str = ""
    """Further limits, as text."""


class OperationRows(Sequence[OperationSupport]):
    """Rows computed on first use, because tables are slow to import."""

    def __init__(self, make: Callable[[], Iterable[OperationSupport]]) -> None:
        self._make = make

    @overload
    def __getitem__(self, index: int) -> OperationSupport: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[OperationSupport, ...]: ...

    def __getitem__(self, index: int | slice) -> OperationSupport | tuple[OperationSupport, ...]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __reduce__(self) -> tuple[type[tuple[OperationSupport, ...]], tuple[tuple[OperationSupport, ...]]]:
        return tuple, (self._rows,)

    @cached_property
    def _rows(self) -> tuple[OperationSupport, ...]:
        return tuple(self._make())


class DynamicShapes(StrEnum):
    """Support for models with dimensions that are unknown at compile time."""

    NONE = "none"
    """Every program has static shapes."""
    ANY = "any"
    """One program runs at any size, if `Context.admit` accepts the model. In ONNX models, no tensor has a dimension
    of 0, except inputs of Concat.
    """
    BOUNDED = "bounded"
    """One program runs at sizes within `Capability.dimension_bounds`. For adapter IR only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionBounds:
    """Bounds for tensors with dynamic shapes. Drivers judge static shapes themselves."""

    smallest: int = 0
    largest: int | None = None
    """Largest dimension; None for no limit."""
    largest_elements: int | None = None
    """Largest number of elements of a tensor; None for no limit."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Static description of a device.

    Args:
        form: form of segments.
        threading: allowed concurrency.
        role: role in a session. External drivers are accelerators.
        dynamic_shapes: support for dynamic shapes.
        dimension_bounds: supported sizes, for `DynamicShapes.BOUNDED`.
        checks_indices: the device raises for an index or length out of range before it accesses memory. Other devices
            get no node with a computed index that may be out of range.
        supports_external_initializers: ONNX segments may refer to large weights, see `nnadapter.onnx.references`.
        domains: for `ModelForm.IR`: ONNX domains from which ops without a converter become operations CUSTOM.
        memory_bytes: size of device memory; None for no limit. `Context.admit` judges one segment: if all programs of a
            plan stay in device memory, the device must reserve memory for other programs.
        precisions: supported precisions. If several are floating, the option `precision` chooses.
        default_precision: default precision of the device's own engine.
        options: options of a context.
        operations: rows for `nnadapter ops DEVICE`; empty if only `supported` can judge operations.
        limits: limits of all operations, as text.
        profile: speed; None if undeclared. `Context.profile` takes precedence.
    """

    form: ModelForm
    threading: Threading = Threading.SERIAL
    role: DeviceRole = DeviceRole.ACCELERATOR
    dynamic_shapes: DynamicShapes = DynamicShapes.NONE
    dimension_bounds: DimensionBounds | None = None
    checks_indices: bool = False
    supports_external_initializers: bool = False
    domains: tuple[str, ...] = ()
    memory_bytes: int | None = None
    precisions: tuple[ComputePrecision, ...] = (ComputePrecision(precision=Precision.FLOAT32),)
    default_precision: Precision = Precision.FLOAT32
    options: tuple[Option, ...] = ()
    operations: tuple[OperationSupport, ...] | OperationRows = ()
    limits: str = ""
    profile: Profile | None = None

    @property
    def floating_precisions(self) -> tuple[Precision, ...]:
        """Supported floating precisions."""
        return tuple(row.precision for row in self.precisions if row.precision.is_floating)

    def precision_of(self, options: OptionValues) -> Precision:
        """Return the precision of a context with `options`."""
        if PRECISION in options and options[PRECISION] in self.floating_precisions:
            return Precision(str(options[PRECISION]))
        return next(iter(self.floating_precisions), self.default_precision)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for reports, without the operations, their limits and the speed."""
        return _plain_fields(self, "operations", "limits", "profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatistics:
    """Usage of device memory, in bytes."""

    total_bytes: int
    used_bytes: int
    peak_bytes: int
    """Maximum since the device was opened."""
    allocations: int | None = None
    """Allocations since the device was opened; None if not counted."""
    bytes_in: int | None = None
    """Copied from the host to the device since it was opened."""
    bytes_out: int | None = None
    """Copied from the device to the host since it was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """Row of `nnadapter devices`."""

    name: str
    """`fake_npu`, or `driver:id` if the driver has several devices."""
    vendor: str = ""
    type: DeviceType = DeviceType.ACCELERATOR
    sub_type: str = ""
    """Vendor's name of the device model."""
    version: str = ""
    available: bool = True
    reason: str = ""
    """Cause and remedy if the device is not available."""
    installable: bool = True
    """True if something can be installed that makes the device available."""
    distribution: str = ""
    capability: Capability | None = None
    """None if not available."""

    def to_dict(self) -> dict[str, Any]:
        return _plain_fields(self, "capability")


def _plain_fields(instance: Capability | DeviceInfo, *omitted: str) -> dict[str, Any]:
    names = (entry.name for entry in fields(instance) if entry.name not in omitted)
    return {name: _plain(getattr(instance, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    return value.to_dict() if hasattr(value, "to_dict") else value
