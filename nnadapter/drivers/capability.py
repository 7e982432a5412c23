"""Device capabilities: limits, options, accepted operations and declared speed, as frozen values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, overload

from nnadapter.ir.operand import DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Limits of a device in seconds, bytes per second and floating-point operations per second.

    An operation takes `operation_seconds` plus the longer of its FLOPs over the peak and its bytes over the bandwidth.
    A segment takes `launch_seconds` beside, and each of its inputs and outputs `transfer_seconds` plus its bytes over
    `transfer_bandwidth`. A multiply-add counts as two. Say what is reached, not what a data sheet promises.

    Source: Williams, Waterman, Patterson: Roofline (CACM 2009); Hockney's line for messages, `r`-infinity and `n`-half.
    """

    peak_flops: float
    """Floating-point operations per second, of any data type that `peak_of_dtype` does not name."""
    bandwidth: float
    """Bytes per second between the device's compute units and its own memory."""
    launch_seconds: float
    """Of one segment with next to nothing in it, transfers left out."""
    transfer_seconds: float
    """Of one tensor, however small, to the device or from it."""
    transfer_bandwidth: float
    """Bytes per second to the device or from it."""
    operation_seconds: float = 0.0
    """Of every operation, however small."""
    peak_of_dtype: Mapping[str, float] = field(default_factory=dict)
    """Data type of an operation's first input -> floating-point operations (or those of integers) per second."""
    boundary_dtypes: frozenset[str] | None = None
    """Data types that cross to the device as they are. Others its driver converts on the host, which costs time; None
    if all cross as they are."""
    channels_last: bool = False
    """Tensors of rank 4 that cross are reordered on the device, from [N, C, H, W] or back."""
    host_memory: bool = False
    """The device computes in the host's memory, so that values of any kind cross for nothing."""
    simulated: bool = False
    """The device is no hardware: these are the limits of what it stands for, and its clock says so."""


def flaw(profile: object) -> str:
    """What is wrong with what a device says of its speed, as half a sentence; empty if nothing is."""
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
"""What each field has to be: in words where it is not, else empty."""


class DeviceType(StrEnum):
    """Source: NNAdapterDeviceTypeCode."""

    CPU = "cpu"
    GPU = "gpu"
    ACCELERATOR = "accelerator"


class ModelForm(StrEnum):
    """In which form a device takes a segment."""

    IR = "ir"
    """The adapter IR: `nnadapter.ir.Model`."""
    ONNX = "onnx"
    """An ONNX sub-graph: `onnx.ModelProto`, all constants included."""


class Threading(StrEnum):
    """What may happen at once on a device; the executor keeps to it."""

    REENTRANT = "program re-entrant"
    """One execution may compute in many threads at once."""
    EXCLUSIVE = "execution exclusive"
    """Executions of one program may compute side by side, each in one thread at a time."""
    SERIAL = "device serial"
    """One computation at a time on the whole device."""


class DeviceRole(StrEnum):
    """What a device is to a session. Drivers from outside are accelerators."""

    ACCELERATOR = "accelerator"
    """It takes what it can, in the order in which a person names devices."""
    HOST = "host"
    """It takes what nobody else takes, named or not, and what another device failed to do."""
    LAST_RESORT = "last resort"
    """It takes what even the host refuses; asked only then, unless it is named."""

    @property
    def accelerates(self) -> bool:
        """Whether nodes on such a device count as delegated."""
        return self is DeviceRole.ACCELERATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One typed option of a device, as help shows it."""

    name: str
    default: bool | int | float | str | tuple[str, ...]
    """Also says the type: a tuple of strings is given as a list or as text with commas."""
    help: str
    """One sentence."""
    choices: tuple[str, ...] = ()
    """For strings: what it may be."""
    minimum: int | float | None = None
    """For numbers: the smallest value."""
    affects_speed: bool = True
    """Whether what the device takes may take longer or shorter with it: a calibration holds for one value of it."""

    def to_dict(self) -> dict[str, Any]:
        """The option as plain data."""
        return {
            "name": self.name,
            "type": "list" if isinstance(self.default, tuple) else type(self.default).__name__,
            "default": self.default,
            "choices": self.choices,
            "minimum": self.minimum,
            "help": self.help,
        }


OptionValue = bool | int | float | str | tuple[str, ...]
"""What an option may hold."""
OptionValues = Mapping[str, OptionValue]
"""Validated options: every option of the device, defaults filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSupport:
    """What a device can do of one operation: a row of `nnadapter ops DEVICE`, from the table that decides."""

    type: str
    """The operation's name in the adapter IR, or `domain::op_type` for devices that take ONNX."""
    dtypes: frozenset[DataType]
    """Data types of the first input."""
    ranks: tuple[int, int]
    """Smallest and largest rank."""
    limits: str = ""
    """Further limits, in words."""


class OperationRows(Sequence[OperationSupport]):
    """Rows that are made when somebody looks: many devices are opened without, and tables take long to import.

    Args:
        make: gives the rows.
    """

    def __init__(self, make: Callable[[], Iterable[OperationSupport]]) -> None:
        self._make = make

    @overload
    def __getitem__(self, index: int) -> OperationSupport: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[OperationSupport, ...]: ...

    def __getitem__(self, index: int | slice) -> OperationSupport | tuple[OperationSupport, ...]:
        """The row at a position."""
        return self._rows[index]

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def __reduce__(self) -> tuple[type[tuple[OperationSupport, ...]], tuple[tuple[OperationSupport, ...]]]:
        """Another process gets the rows."""
        return tuple, (self._rows,)

    @cached_property
    def _rows(self) -> tuple[OperationSupport, ...]:
        return tuple(self._make())


class DynamicShapes(StrEnum):
    """What a device can do with a model whose dimensions are not all known."""

    NONE = "none"
    """It compiles for fixed sizes."""
    ANY = "any"
    """It compiles once and runs at whatever sizes come. `Context.admit` says yes to such a model, or why not. In ONNX,
    sizes are 0 in what Concat joins to something else, and nowhere else; in adapter IR, where the model asks for it."""
    BOUNDED = "bounded"
    """The same for sizes within `Capability.dimension_bounds`; for devices that take adapter IR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionBounds:
    """How large a tensor may be whose sizes are left open. Sizes that a model fixes are for the driver to judge."""

    smallest: int = 0
    """Of a dimension."""
    largest: int | None = None
    """Of a dimension; None for any."""
    largest_elements: int | None = None
    """Elements of a tensor; None for any number."""

    def to_dict(self) -> dict[str, Any]:
        """The bounds as plain data."""
        return {"smallest": self.smallest, "largest": self.largest, "largest_elements": self.largest_elements}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """A device's limits: what its driver says of it before it is asked anything.

    Args:
        form: in which form it takes segments: adapter IR or ONNX.
        threading: what may happen at once on it; one computation at a time unless it says more.
        role: what it is to a session. Drivers from outside are accelerators.
        dynamic_shapes: whether segments may come with sizes left open; the host asks for nothing of the kind otherwise.
        dimension_bounds: for `DynamicShapes.BOUNDED`: at which sizes it runs.
        checks_indices: whether it raises for an index or a length out of its range before it reads memory by it. A
            node that computes an index in a range that cannot be proven does not go to other devices.
        supports_external_initializers: whether ONNX segments may refer to large weights instead of holding them, see
            `nnadapter.onnx.references`; other devices get them with every weight inside.
        domains: for `ModelForm.IR`: ONNX domains whose nodes it is offered as they are, as the operation CUSTOM, where
            no converter is for their op.
        memory_bytes: size of the device's memory, if it is limited. `Context.admit` judges every segment by itself
            against it; a device that keeps all programs of a plan in memory at once must leave room for the others.
        options: the options that a context understands, with defaults and help.
        operations: what it takes, operation by operation, as `nnadapter ops DEVICE` shows it; empty where only asking
            tells. `OperationRows` makes them when somebody looks.
        limits: what holds for every operation, in words.
        profile: how fast it is; None if it does not say. `Context.profile` takes precedence, where options change it.
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
    options: tuple[Option, ...] = ()
    operations: tuple[OperationSupport, ...] | OperationRows = ()
    limits: str = ""
    profile: Profile | None = None

    def to_dict(self) -> dict[str, Any]:
        """What people and programs are shown of it as plain data; operations have a command of their own."""
        return {
            "form": self.form.value,
            "threading": self.threading.value,
            "role": self.role.value,
            "dynamic_shapes": self.dynamic_shapes.value,
            "dimension_bounds": None if self.dimension_bounds is None else self.dimension_bounds.to_dict(),
            "checks_indices": self.checks_indices,
            "supports_external_initializers": self.supports_external_initializers,
            "domains": self.domains,
            "memory_bytes": self.memory_bytes,
            "options": [option.to_dict() for option in self.options],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatistics:
    """How full a device's memory is, in bytes."""

    total_bytes: int
    used_bytes: int
    peak_bytes: int
    """The most that was used at once since the device was opened."""
    allocations: int | None = None
    """How often memory was allocated since then; None where the driver does not count, as below."""
    bytes_in: int | None = None
    """Copied from the host to the device since then."""
    bytes_out: int | None = None
    """Copied from the device to the host since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One row of `nnadapter devices`."""

    name: str
    """What a person writes to choose it: `fake_npu`, or `driver:id` where a driver has several."""
    vendor: str = ""
    type: DeviceType = DeviceType.ACCELERATOR
    sub_type: str = ""
    """The vendor's own name for this model of device."""
    version: str = ""
    """The driver's version."""
    available: bool = True
    reason: str = ""
    """Why it is not available, and what to do about it."""
    installable: bool = True
    """Something can be installed that makes it available; False on other hardware, or another system."""
    distribution: str = ""
    """The installed distribution that the driver came with."""
    capability: Capability | None = None
    """Limits and options; None where the device is not available."""

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        return {
            "name": self.name,
            "vendor": self.vendor,
            "type": self.type.value,
            "sub_type": self.sub_type,
            "version": self.version,
            "available": self.available,
            "reason": self.reason,
            "installable": self.installable,
            "distribution": self.distribution,
        }
