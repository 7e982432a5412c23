"""Seconds of work: the roofline of declared limits, and lines that were measured."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from nnadapter.drivers.profile import Profile

Numbers = NDArray[np.float64]


Seconds = Annotated[float, Meta(ge=0, le=1e6)]
"""Not so many that sums of them lose their meaning."""


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of the operations of one class, as measured: a + flops x b + bytes x c."""

    seconds: Seconds
    """a: of an operation with next to no work."""
    seconds_per_flop: Seconds
    """b."""
    seconds_per_byte: Seconds
    """c: of bytes read and written, weights included."""
    error: Seconds
    """The median of |line - measured| / measured."""

    def per_operation(self, work: float) -> float:
        """Seconds of an operation of so many FLOPs and as many bytes."""
        return self.seconds + work * (self.seconds_per_flop + self.seconds_per_byte)

    def of(self, flops: Numbers, nbytes: Numbers) -> Numbers:
        """Seconds of operations, one by one."""
        return self.seconds + flops * self.seconds_per_flop + nbytes * self.seconds_per_byte


def roofline(profile: Profile, flops: Numbers, nbytes: Numbers, peaks: Numbers | float | None = None) -> Numbers:
    """Return the seconds of operations by the limits of a device, one by one.

    Args:
        profile: the device's.
        flops: floating-point operations of each.
        nbytes: bytes that each reads and writes, weights included.
        peaks: FLOPs per second of each, where the data type counts; the profile's peak if None.

    Source: Williams, Waterman, Patterson: Roofline (CACM 2009).
    """
    peak = profile.peak_flops if peaks is None else peaks
    return profile.operation_seconds + np.maximum(flops / peak, nbytes / profile.bandwidth)
