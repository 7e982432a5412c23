"""What it costs a value to cross the border of a segment, and which values may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnadapter.costs.roofline import Numbers
from nnadapter.drivers.profile import Profile
from partition.dtypes import ITEMSIZE_OF_DTYPE
from partition.graph import Graph

CONVERSION_BANDWIDTH = 4e9
"""Bytes per second, read and written together, of a conversion between data types on the host: an assumption."""
_IMAGE_RANK = 4


@dataclass(frozen=True, eq=False)
class Crossing:
    """What decides the cost of values at a border. Arrays of [values]."""

    nbytes: Numbers
    dtypes: tuple[str, ...]
    """Every data type once; empty for one that is not known."""
    dtype_of: NDArray[np.int64]
    """Positions in `dtypes`."""
    dense: NDArray[np.bool_]
    """Not known to be something else than a tensor of numbers."""
    images: NDArray[np.bool_]
    """Of rank 4."""

    @classmethod
    def of(cls, graph: Graph, names: Sequence[str], nbytes: Numbers) -> Crossing:
        """Describe the values called `names`, which take `nbytes`."""
        values = [graph.values.get(name) for name in names]
        each = ["" if value is None else value.dtype or "" for value in values]
        dtypes = tuple(dict.fromkeys(("", *each)))
        place = {dtype: position for position, dtype in enumerate(dtypes)}
        crosses = np.array([not dtype or bool(ITEMSIZE_OF_DTYPE.get(dtype)) for dtype in dtypes])
        dtype_of = np.array([place[dtype] for dtype in each], dtype=np.int64)
        ranks = [len(value.shape) if value is not None and value.shape is not None else 0 for value in values]
        return cls(nbytes, dtypes, dtype_of, crosses[dtype_of], np.array(ranks) == _IMAGE_RANK)

    def seconds(self, profile: Profile) -> Numbers:
        """Seconds for each value to cross, in either direction; infinite where it may not.

        1. In the host's own memory everything crosses for nothing.
        2. What is no dense tensor (a sequence, strings) does not cross.
        3. A tensor takes a time of its own, and its bytes over the bandwidth of transfers.
        4. A data type that the device does not take over is converted by the host: bytes are read and written.
        5. A tensor of rank 4 is reordered where the device wants channels last: bytes are read and written there.
        """
        if profile.host_memory:
            return np.zeros_like(self.nbytes)
        seconds = transfer_seconds(profile, self.nbytes) + self.stay_seconds(profile)
        foreign = np.array([is_foreign(profile, dtype) for dtype in self.dtypes])
        return seconds + np.where(foreign[self.dtype_of], cast_seconds(self.nbytes), 0.0)

    def stay_seconds(self, profile: Profile) -> Numbers:
        """Seconds at either end for each value that stays on the device between two segments; infinite if it may not.

        It is still reordered, see 5: every segment takes and gives tensors as the host has them.
        """
        reordered = reorder_seconds(profile, self.nbytes) if profile.channels_last else np.zeros_like(self.nbytes)
        return np.where(self.dense, np.where(self.images, reordered, 0.0), np.inf)


def is_foreign(profile: Profile, dtype: str | None) -> bool:
    """Whether the host converts a data type for the device."""
    return bool(dtype) and profile.boundary_dtypes is not None and dtype not in profile.boundary_dtypes


def transfer_seconds(profile: Profile, nbytes: Numbers) -> Numbers:
    """Seconds of tensors from the host to the device or back."""
    return profile.transfer_seconds + nbytes / profile.transfer_bandwidth


def cast_seconds(nbytes: Numbers) -> Numbers:
    """Seconds of conversions between data types on the host."""
    return 2 * nbytes / CONVERSION_BANDWIDTH


def reorder_seconds(profile: Profile, nbytes: Numbers) -> Numbers:
    """Seconds of reordering images on the device."""
    return profile.operation_seconds + 2 * nbytes / profile.bandwidth
