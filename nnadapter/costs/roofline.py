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
    """Seconds of the operations of one kind, as measured: a, and flops x b and bytes x c at right angles.

    Arithmetic and traffic overlap, though not wholly: where one is far longer it alone counts, as in a roofline, and
    where both are alike they take 1.4 times one of them.
    """

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
        return float(self.of(np.float64(work), np.float64(work)))

    def of(self, flops: Numbers | np.float64, nbytes: Numbers | np.float64) -> Numbers:
        """Seconds of operations, one by one."""
        taken: Numbers = self.seconds + np.hypot(flops * self.seconds_per_flop, nbytes * self.seconds_per_byte)
        return taken


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
