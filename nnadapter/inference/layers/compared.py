"""A run of a model on devices and on the CPU, which may be looked into."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnadapter.accuracy.cutting import Values
from nnadapter.accuracy.tolerances import Tolerances
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.options import Options
from nnadapter.reports.report import PartitionReport

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparedRun:
    """What was run, and where."""

    model: str | os.PathLike[str] | bytes | onnx.ModelProto
    requests: Sequence[DeviceRequest]
    """The devices."""
    options: Options
    tolerances: Tolerances
    feed: Values
    expected: Values
    """The CPU's outputs."""
    agrees: bool
    """The outputs of the devices were within the tolerance."""
    report: PartitionReport
    """Where the nodes ran."""
