"""A calibration: what a device costs, as measured by the host's clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log, sqrt
from typing import Annotated

from msgspec import Meta, Struct

from nnadapter.costs.classes import OperationClass
from nnadapter.costs.roofline import Line, Seconds
from nnadapter.drivers.capability import OptionValue


class MeasuredNetwork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A small network of mixed operations, all of it on the device."""

    seconds: Seconds
    """As measured."""
    predicted: Seconds
    """As the lines say."""

    @property
    def quotient(self) -> float:
        """What was predicted over what was measured."""
        return self.predicted / self.seconds if self.seconds else 1.0


class Calibration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured of one device, driver version and set of options; its file has the same entries."""

    device: str
    driver_version: str
    interface_version: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]
    options: Mapping[str, OptionValue]
    """Those that change how long something takes, `isolate` among them where the device has a process of its own."""
    machine: str
    """As `machine_description` tells it."""
    crowded: bool
    """Other programs used the processors meanwhile."""
    processors: Annotated[float, Meta(ge=0)] | None = None
    """Of the host, in use while it computes, be it in a process of its own; None where nobody counted."""
    launch_seconds: Seconds
    """Of a segment with next to nothing in it, between segments of other devices."""
    alone_seconds: Seconds
    """Of the same where it is all that runs, again and again."""
    transfer_seconds: Seconds
    """Of one tensor, in either direction: the host cannot tell them apart."""
    transfer_seconds_per_byte: Seconds
    networks: Mapping[str, MeasuredNetwork]
    """What tells how far lines are off, by name; the same for all devices."""
    lines: Mapping[OperationClass, Line]
    """By class, float32: of operations by themselves."""
    riding: Mapping[OperationClass, Mapping[OperationClass, Line]]
    """Of operations that come behind others, by the class of these, then by their own; see `nnadapter.costs.riding`."""
    left_out: Mapping[OperationClass, str]
    """Classes that were not measured, and why."""

    @property
    def off_by(self) -> float:
        """How far predictions are off, as a share: the root mean square of the logarithms of quotients of networks."""
        if not self.networks:
            return max((line.error for line in self.lines.values()), default=0.0)
        return spread(log(network.quotient) for network in self.networks.values() if network.predicted)

    def __str__(self) -> str:
        """A table."""
        head = [
            f"device     {self.device} {self.driver_version}".rstrip(),
            *(f"option     {name} = {value}" for name, value in self.options.items()),
            *(["crowded    other programs used the processors meanwhile; measure again when none do"] * self.crowded),
            *([] if self.processors is None else [f"processors {self.processors:.2g} of the host's are in use"]),
            f"launch     {1e6 * self.launch_seconds:.1f} us per segment, "
            f"{1e6 * self.alone_seconds:.1f} us if it is all",
            f"transfer   {1e6 * self.transfer_seconds:.1f} us per tensor"
            + _rate(", ", self.transfer_seconds_per_byte, "GB/s"),
        ]
        if self.lines and all(line.per_operation(_EVERYDAY) < _NOTHING for line in self.lines.values()):
            head.append("work       takes no time: this device does nothing with it")
            return "\n".join(head)
        head.append(f"networks   off by {100 * self.off_by:.0f} %")
        return "\n".join(
            (
                *head,
                *(
                    self._row(operation_class)
                    for operation_class in OperationClass
                    if operation_class in {*self.lines, *self.left_out}
                ),
                *(
                    _line_text(f"{operation_class} behind {carrier}", line)
                    for carrier in self.riding
                    for operation_class, line in self.riding[carrier].items()
                ),
            )
        )

    def _row(self, operation_class: OperationClass) -> str:
        line = self.lines.get(operation_class)
        if line is None:
            return f"{operation_class.value:<14} not measured: {self.left_out[operation_class]}"
        return _line_text(operation_class.value, line)


def spread(logarithms: Iterable[float]) -> float:
    """Return the root mean square of logarithms of quotients, as a share; 0 of none."""
    squares = [logarithm * logarithm for logarithm in logarithms]
    return exp(sqrt(sum(squares) / len(squares))) - 1 if squares else 0.0


def _line_text(name: str, line: Line) -> str:
    rates = _rate(" + ", line.seconds_per_flop, "GFLOP/s") + _rate(" + ", line.seconds_per_byte, "GB/s")
    return f"{name:<14} {1e6 * line.seconds:.1f} us{rates}, off by {100 * line.error:.0f} %"


_EVERYDAY, _NOTHING = 1e6, 1e-6
"""FLOPs and bytes of an operation of middling size, and seconds in which no device has done it."""


def _rate(prefix: str, seconds: float, unit: str) -> str:
    return f"{prefix}{1e-9 / seconds:.3g} {unit}" if seconds else ""
