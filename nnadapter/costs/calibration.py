"""A calibration: what a device costs, as measured by the host's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nnadapter.costs.classes import OperationClass
from nnadapter.costs.roofline import Line
from nnadapter.drivers.capability import OptionValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured of one device, driver version and set of options."""

    device: str
    driver_version: str
    interface_version: tuple[int, int]
    options: Mapping[str, OptionValue]
    """Those that change how long something takes."""
    launch_seconds: float
    """Of a segment with next to nothing in it."""
    transfer_seconds: float
    """Of one tensor, in either direction: the host cannot tell them apart."""
    transfer_seconds_per_byte: float
    lines: Mapping[OperationClass, Line]
    """By class, float32."""
    errors: Mapping[OperationClass, float] = field(default_factory=dict)
    """By class, the median of |line - measured| / measured."""
    off_by: float = 0.0
    """The root mean square of (predicted - measured) / measured, over small networks of mixed operations."""
    left_out: Mapping[OperationClass, str] = field(default_factory=dict)
    """Classes that were not measured, and why."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data: the contents of a calibration's file."""
        return {
            "device": self.device,
            "driver_version": self.driver_version,
            "interface_version": list(self.interface_version),
            "options": {name: list(each) if isinstance(each, tuple) else each for name, each in self.options.items()},
            "launch_seconds": self.launch_seconds,
            "transfer_seconds": self.transfer_seconds,
            "transfer_seconds_per_byte": self.transfer_seconds_per_byte,
            "off_by": self.off_by,
            "lines": {
                each.value: {
                    "seconds": line.seconds,
                    "seconds_per_flop": line.seconds_per_flop,
                    "seconds_per_byte": line.seconds_per_byte,
                    "error": self.errors.get(each, 0.0),
                }
                for each, line in self.lines.items()
            },
            "left_out": {each.value: why for each, why in self.left_out.items()},
        }

    def __str__(self) -> str:
        """A table."""
        head = [
            f"device     {self.device} {self.driver_version}".rstrip(),
            *(f"option     {name} = {value}" for name, value in self.options.items()),
            f"launch     {1e6 * self.launch_seconds:.1f} us per segment",
            f"transfer   {1e6 * self.transfer_seconds:.1f} us per tensor"
            + _rate(", ", self.transfer_seconds_per_byte, "GB/s"),
        ]
        if self.lines and all(line.per_operation(_EVERYDAY) < _NOTHING for line in self.lines.values()):
            head.append("work       takes no time: this device does nothing with it")
            return "\n".join(head)
        head.append(f"networks   off by {100 * self.off_by:.0f} %")
        return "\n".join(
            (*head, *(self._row(each) for each in OperationClass if each in {*self.lines, *self.left_out}))
        )

    def _row(self, each: OperationClass) -> str:
        line = self.lines.get(each)
        if line is None:
            return f"{each.value:<14} not measured: {self.left_out[each]}"
        rates = _rate(" + ", line.seconds_per_flop, "GFLOP/s") + _rate(" + ", line.seconds_per_byte, "GB/s")
        return f"{each.value:<14} {1e6 * line.seconds:.1f} us{rates}, off by {100 * self.errors.get(each, 0.0):.0f} %"


_EVERYDAY, _NOTHING = 1e6, 1e-6
"""FLOPs and bytes of an operation of middling size, and seconds in which no device has done it."""


def _rate(before: str, seconds: float, unit: str) -> str:
    return f"{before}{1e-9 / seconds:.3g} {unit}" if seconds else ""
