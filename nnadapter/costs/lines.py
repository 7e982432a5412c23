"""From what chains of operations took to a line per kind of operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from nnadapter.costs.classes import OperationClass
from nnadapter.costs.fitting import error, fit_line, line_seconds
from nnadapter.costs.probes import OperationWork, work_of
from nnadapter.costs.riding import Kind
from nnadapter.costs.roofline import Line
from nnadapter.costs.timing import ProgramTiming
from nnadapter.ir.model import Model

Lines = Mapping[Kind, Line]
NOISE = 0.1
"""The share of a run that is not told from noise."""
_BY_FLOPS = frozenset(
    {OperationClass.CONVOLUTION, OperationClass.MATRIX, OperationClass.DEPTHWISE, OperationClass.RECURRENT}
)
_BY_BYTES = frozenset(OperationClass) - {OperationClass.DEPTHWISE, OperationClass.RECURRENT}
"""What the time of a class follows: where FLOPs and bytes go together, only one of them can be told."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A short and a long chain of one probe."""

    kind: Kind
    short: ProgramTiming
    long: ProgramTiming

    @property
    def further_seconds(self) -> float:
        """What the long chain takes longer: the median over rounds, in which both ran one behind the other."""
        return median(long - short for short, long in zip(self.short.samples, self.long.samples, strict=True))

    @property
    def further(self) -> Sequence[OperationWork]:
        """The operations that the long chain has beside the short one's."""
        return work_of(self.long.model)[len(self.short.model.operations) :]


def lines_of(pairs: Sequence[Pair]) -> dict[Kind, Line]:
    """Return a line per kind, from what the further links of chains take, and how far off it is."""
    lines: dict[Kind, Line] = {}
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        own = [pair for pair in pairs if pair.kind == kind]
        rows = [_row(kind, [each for each in pair.further if each.kind == kind]) for pair in own]
        seconds = [max(0.0, pair.further_seconds - _others(pair, lines)) for pair in own]
        coefficients = fit_line(rows, seconds, [NOISE * pair.long.seconds for pair in own])
        launch, per_flop, per_byte = map(float, coefficients)
        lines[kind] = Line(
            seconds=launch,
            seconds_per_flop=per_flop,
            seconds_per_byte=per_byte,
            error=error(line_seconds(rows, coefficients), seconds),
        )
    return lines


def line_of(lines: Lines, kind: Kind) -> Line | None:
    """Return the line of a kind, or that of the operation by itself where none was measured behind another one."""
    return lines.get(kind) or lines.get(Kind(kind.operation_class))


def work_seconds(lines: Lines, model: Model) -> float:
    """Return what the operations of a model take together; those without a line take nothing."""
    return sum(_seconds(lines, each) for each in work_of(model))


def _seconds(lines: Lines, work: OperationWork) -> float:
    line = line_of(lines, work.kind)
    return 0.0 if line is None else float(line.of(np.float64(work.flops), np.float64(work.nbytes)))


def _others(pair: Pair, lines: Lines) -> float:
    """What the operations of other kinds in the further links take, as far as that is known."""
    return sum(_seconds(lines, each) for each in pair.further if each.kind != pair.kind)


def _row(kind: Kind, works: Sequence[OperationWork]) -> tuple[float, float, float]:
    by_flops, by_bytes = kind.operation_class in _BY_FLOPS, kind.operation_class in _BY_BYTES
    return (
        float(len(works)),
        by_flops * sum(each.flops for each in works),
        by_bytes * sum(each.nbytes for each in works),
    )
