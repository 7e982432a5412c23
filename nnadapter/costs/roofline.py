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


class MeasuredWork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operations that were timed, and what they took over what the line says."""

    flops: Annotated[float, Meta(ge=0)]
    """Of one, channels counted in whole blocks."""
    nbytes: Annotated[float, Meta(ge=0)]
    """Of one."""
    padding: Annotated[float, Meta(ge=1)]
    """FLOPs over what they would be without whole blocks."""
    quotient: Annotated[float, Meta(gt=0)]
    """What one took over what the line says."""
    trust: Annotated[float, Meta(ge=0, le=1)]
    """How much it counts: less where it is little beside the noise of what it was measured in."""


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of the operations of one kind, as measured: a, and flops x b and bytes x c at right angles.

    Arithmetic and traffic overlap, though not wholly: where one is far longer it alone counts, as in a roofline, and
    where both are alike they take 1.4 times one of them. An engine that computes channels in blocks computes whole
    ones. What caches and kernels make of some sizes is no line: near sizes that were timed, what these took beside the
    line counts (a weighted mean of logarithms, Nadaraya and Watson 1964).
    """

    seconds: Seconds
    """a: of an operation with next to no work."""
    seconds_per_flop: Seconds
    """b."""
    seconds_per_byte: Seconds
    """c: of bytes read and written, weights included."""
    error: Seconds
    """The median of |line - measured| / measured."""
    block: Annotated[int, Meta(ge=1)] = 1
    """How many channels are computed at once."""
    seen: tuple[MeasuredWork, ...] = ()
    """What was timed."""

    def per_operation(self, work: float) -> float:
        """Seconds of an operation of so many FLOPs and as many bytes."""
        return float(self.of(np.array([work]), np.array([work]))[0])

    def of(self, flops: Numbers, nbytes: Numbers, channels: Numbers | None = None) -> Numbers:
        """Seconds of operations, one by one.

        Args:
            flops: [operations].
            nbytes: [operations].
            channels: [operations, 2], read and made; 0 where there are none.
        """
        padding = np.ones_like(flops) if channels is None else padding_of(channels, self.block)
        padded_flops = flops * padding
        seconds: Numbers = self.seconds + np.hypot(padded_flops * self.seconds_per_flop, nbytes * self.seconds_per_byte)
        return seconds * self._beside(padded_flops, nbytes, padding) if self.seen else seconds

    def _beside(self, flops: Numbers, nbytes: Numbers, padding: Numbers) -> Numbers:
        """What was timed of sizes like these, over the line."""
        places = np.log1p([[measurement.flops, measurement.nbytes, measurement.padding] for measurement in self.seen])
        away = np.zeros((len(flops), len(places)))
        for query, timed in zip((flops, nbytes, padding), places.T, strict=True):
            away += np.square((np.log1p(query)[:, None] - timed) / _REACH)
        near = np.exp(-0.5 * away) * [measurement.trust for measurement in self.seen]
        log_correction: Numbers = (
            near @ np.log([measurement.quotient for measurement in self.seen]) / (near.sum(axis=1) + _DOUBT)
        )
        return np.exp(log_correction)


_REACH = np.log(2.0)
"""The logarithm of how many times the size something may be that is told of it by what was timed."""
_DOUBT = 0.25
"""What the line itself counts, where what was timed in the very place counts 1."""


def padding_of(channels: Numbers, block: int) -> Numbers:
    """Return FLOPs of whole blocks over FLOPs [operations].

    Args:
        channels: [operations, 2]; 0 where there are none.
        block: how many channels are computed at once.
    """
    some = np.maximum(channels, 1.0)
    padded_channels = np.where(channels > 0, np.ceil(some / block) * block, 1.0)
    padding: Numbers = (padded_channels / some).prod(axis=1)
    return padding


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
