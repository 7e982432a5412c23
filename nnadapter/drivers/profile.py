"""How fast a device says it is: the limits that a cost model computes with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

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
