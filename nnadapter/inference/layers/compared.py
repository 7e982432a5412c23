"""A run of a model on devices and on the CPU, which is to be looked into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnadapter.drivers.selection import DeviceRequest
from nnadapter.inference.layers.cutting import Values
from nnadapter.options import Options
from nnadapter.reports.report import PartitionReport

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, eq=False, kw_only=True)
class Compared:
    """What was run, and where."""

    model: onnx.ModelProto
    requests: Sequence[DeviceRequest]
    """The devices."""
    options: Options
    feed: Values
    expected: Values
    """The CPU's outputs."""
    agrees: bool
    """The outputs of the devices were within the tolerance."""
    report: PartitionReport
    """Where the nodes ran."""
    relative_tolerance: float
    absolute_tolerance: float
