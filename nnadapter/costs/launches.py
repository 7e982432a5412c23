"""What programs take beside their operations: a launch, and tensors that cross."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnadapter.costs.fitting import fit
from nnadapter.costs.lines import NOISE, Lines, work_seconds
from nnadapter.costs.timing import ProgramTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Seconds, as `nnadapter.costs.calibration.Calibration` has them."""

    segment: float
    """Of a launch where a segment stands, between others."""
    alone: float
    """Of a launch of what is all that runs."""
    tensor: float
    """Of a tensor that crosses."""
    byte: float
    """Of a byte of it."""

    def crossing(self, timed: ProgramTiming) -> float:
        """What its inputs and outputs take."""
        return timed.tensors * self.tensor + timed.nbytes * self.byte


def launches_of(
    segments: Sequence[ProgramTiming], standalone_programs: Sequence[ProgramTiming], lines: Lines, *, crosses: bool
) -> Launches:
    """Return what operations leave of programs with little work, which tell most.

    Args:
        segments: programs that ran where segments stand; those of several numbers of tensors tell what a tensor takes.
        standalone_programs: programs that were all that ran.
        lines: what operations take.
        crosses: what goes in and out is priced; of the host it is not, and belongs to the launch.
    """
    several = len({timed.tensors for timed in segments}) > 1
    # Where all have as many tensors, these count as part of the launch.
    rows = [(1.0, float(timed.tensors) if several else 0.0, float(timed.nbytes)) for timed in segments]
    segment, tensor, byte = map(float, fit(rows, _left(segments, lines), _least(segments)))
    launches = Launches(segment=segment, alone=segment, tensor=tensor, byte=byte)
    residuals = [
        max(0.0, seconds - launches.crossing(timed) * crosses)
        for timed, seconds in zip(standalone_programs, _left(standalone_programs, lines), strict=True)
    ]
    standalone_seconds = float(fit([(1.0,)] * len(residuals), residuals, _least(standalone_programs))[0])
    return Launches(segment=max(segment, standalone_seconds), alone=standalone_seconds, tensor=tensor, byte=byte)


def _left(programs: Sequence[ProgramTiming], lines: Lines) -> list[float]:
    return [max(0.0, timed.seconds - work_seconds(lines, timed.model)) for timed in programs]


def _least(programs: Sequence[ProgramTiming]) -> list[float]:
    return [NOISE * timed.seconds for timed in programs]
