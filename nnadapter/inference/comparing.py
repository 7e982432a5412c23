"""A device against the CPU: the same feeds through both, output by output."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.drivers.selection import CPU, DeviceRequest
from nnadapter.inference.session import InferenceSession
from nnadapter.ir.operand import Array
from nnadapter.offering.feeds import random_feed
from nnadapter.options import Options

if TYPE_CHECKING:
    import onnx

RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDifference:
    """One output of one feed, from the devices and from the CPU."""

    feed: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    largest_absolute: float
    """Largest absolute difference; infinite where only one side is finite, or where shapes or types differ."""
    largest_relative: float
    """Largest difference over the CPU's value, where that is not zero."""
    beyond: int
    """Number of elements beyond the tolerance."""
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """Every output of every feed."""

    devices: tuple[str, ...]
    relative_tolerance: float
    absolute_tolerance: float
    differences: tuple[OutputDifference, ...]

    @property
    def agrees(self) -> bool:
        """Every output is within the tolerance."""
        return all(difference.agrees for difference in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "devices": list(self.devices),
            "relative_tolerance": self.relative_tolerance,
            "absolute_tolerance": self.absolute_tolerance,
            "agrees": self.agrees,
            "outputs": [
                {name: getattr(difference, name) for name in OutputDifference.__slots__}
                for difference in self.differences
            ],
        }

    def __str__(self) -> str:
        """One line per output."""
        tolerance = f"{self.relative_tolerance:g} relative + {self.absolute_tolerance:g}"
        head = f"{', '.join(self.devices)} against cpu, tolerance {tolerance}"
        return "\n".join([head, *map(_line, self.differences)])


def compare(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    devices: DeviceRequest | Sequence[DeviceRequest],
    feeds: Mapping[str, Array] | Iterable[Mapping[str, Array]] | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    relative_tolerance: float = RELATIVE_TOLERANCE,
    absolute_tolerance: float = ABSOLUTE_TOLERANCE,
) -> CompareReport:
    """Run `model` on the devices and on the CPU alone, and compare every output.

    Args:
        model: path, contents, or `onnx.ModelProto`.
        devices: as for `InferenceSession`.
        feeds: one feed or several; seeded random numbers if none is given.
        input_shapes: for random feeds, shapes of inputs whose sizes the model leaves open.
        options: how the session on the devices decides.
        relative_tolerance: allowed difference over the CPU's value.
        absolute_tolerance: allowed difference beside it.

    Raises:
        NNAdapterError: the model cannot be loaded, a device not be used, or a feed does not fit.
    """
    if feeds is None:
        feeds = [random_feed(model, input_shapes)]
    elif isinstance(feeds, Mapping):
        feeds = [feeds]
    with (
        InferenceSession(model, devices=devices, options=options) as tested,
        InferenceSession(model, devices=CPU) as reference,
    ):
        names = [output.name for output in tested.get_outputs()]
        found = [
            difference_of(position, name, got, expected, relative_tolerance, absolute_tolerance)
            for position, feed in enumerate(feeds)
            for name, got, expected in zip(names, tested.run(None, feed), reference.run(None, feed), strict=True)
        ]
        return CompareReport(
            devices=tested.devices,
            relative_tolerance=relative_tolerance,
            absolute_tolerance=absolute_tolerance,
            differences=tuple(found),
        )


def difference_of(
    feed: int, name: str, got: Any, expected: Any, relative_tolerance: float, absolute_tolerance: float
) -> OutputDifference:
    """Compare one output. NaN agrees with NaN, and infinities with the same infinity."""
    a, b = np.asarray(got), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        absolute = relative = float("inf")
        beyond = max(a.size, b.size)
    elif a.dtype.kind not in "fiub" and a.dtype.name != "bfloat16":
        beyond = int(np.count_nonzero(a != b))
        absolute = relative = float("inf") if beyond else 0.0
    else:
        absolute, relative, beyond = _numeric(
            a.astype(np.float64), b.astype(np.float64), relative_tolerance, absolute_tolerance
        )
    return OutputDifference(
        feed=feed,
        name=name,
        dtype=a.dtype.name,
        shape=a.shape,
        largest_absolute=absolute,
        largest_relative=relative,
        beyond=beyond,
        agrees=not beyond,
    )


def _numeric(a: Array, b: Array, relative_tolerance: float, absolute_tolerance: float) -> tuple[float, float, int]:
    with np.errstate(invalid="ignore", divide="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.where(same, 0.0, np.abs(a - b))
        difference = np.where(np.isnan(difference), np.inf, difference)
        size = np.abs(b)
        relative = np.where(size > 0, difference / size, 0.0)
        beyond = ~same & ~(difference <= absolute_tolerance + relative_tolerance * size)
    return (
        float(difference.max(initial=0.0)),
        float(np.nan_to_num(relative, nan=np.inf).max(initial=0.0)),
        int(np.count_nonzero(beyond)),
    )


def _line(difference: OutputDifference) -> str:
    verdict = "agrees" if difference.agrees else f"DIFFERS in {difference.beyond} elements"
    return (
        f"  feed {difference.feed} {difference.name} {difference.dtype}{list(difference.shape)}: {verdict}, "
        f"largest difference {difference.largest_absolute:.3g} absolute, {difference.largest_relative:.3g} relative"
    )
