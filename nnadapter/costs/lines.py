"""From what chains of operations took to a line per kind of operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from msgspec.structs import replace as replace_line

from nnadapter.costs.classes import OperationClass
from nnadapter.costs.fitting import error, fit_line, line_seconds
from nnadapter.costs.probes import OperationWork, work_of
from nnadapter.costs.riding import Kind
from nnadapter.costs.roofline import Line, MeasuredWork, padding_of
from nnadapter.costs.timing import ProgramTiming
from nnadapter.ir.model import Model

Lines = Mapping[Kind, Line]
Works = Sequence[OperationWork]
NOISE = 0.1
"""The share of a run that is not told from noise."""
_BY_FLOPS = frozenset(
    {
        OperationClass.CONVOLUTION,
        OperationClass.NARROW,
        OperationClass.MATRIX,
        OperationClass.PAIRED,
        OperationClass.DEPTHWISE,
        OperationClass.RECURRENT,
    }
)
_BY_BYTES = frozenset(OperationClass) - {OperationClass.NARROW, OperationClass.DEPTHWISE, OperationClass.RECURRENT}
"""What the time of a class follows: where FLOPs and bytes go together, only one of them can be told."""
_BLOCKS = (1, 4, 8, 16, 32)
"""How many channels engines compute at once."""
_CLEARLY = 0.8
"""Of how far off a line is without blocks, so much at most with them."""
_FARTHEST = 16.0
"""Times a line at most: a measurement that is farther off is none."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A short and a long chain of one probe."""

    kind: Kind
    short: ProgramTiming
    long: ProgramTiming

    @property
    def further_seconds(self) -> float:
        """What the long chain takes longer."""
        return self.long.seconds - self.short.seconds

    @property
    def further(self) -> Sequence[OperationWork]:
        """The operations that the long chain has beside the short one's."""
        return tuple((Counter(work_of(self.long.model)) - Counter(work_of(self.short.model))).elements())


def lines_of(pairs: Sequence[Pair]) -> dict[Kind, Line]:
    """Return a line per kind, from what the further links of chains take, and how far off it is."""
    lines: dict[Kind, Line] = {}
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        kind_pairs = [pair for pair in pairs if pair.kind == kind]
        works = [[work for work in pair.further if work.kind == kind] for pair in kind_pairs]
        seconds = [max(0.0, pair.further_seconds - _others(pair, lines)) for pair in kind_pairs]
        lines[kind] = _line(kind, works, seconds, [NOISE * pair.long.seconds for pair in kind_pairs])
    return lines


def _line(kind: Kind, works: Sequence[Works], seconds: Sequence[float], least: Sequence[float]) -> Line:
    """The line that is least off; channels are computed in blocks only where that explains clearly more."""
    blocks = _BLOCKS if any(any(work.channels) for row in works for work in row) else _BLOCKS[:1]
    lines = [_fitted(kind, works, seconds, least, block) for block in blocks]
    off = [_off(line, works, seconds) for line in lines]
    best = min(range(len(lines)), key=off.__getitem__)
    line = lines[best if off[best] < _CLEARLY * off[0] else 0]
    measured_works = tuple(
        _seen(line, row, *measurement)
        for row, *measurement in zip(works, seconds, least, strict=True)
        if measurement[0] > 0
    )
    return replace_line(line, seen=measured_works)


def _fitted(kind: Kind, works: Sequence[Works], seconds: Sequence[float], least: Sequence[float], block: int) -> Line:
    rows = [_row(kind, row, block) for row in works]
    coefficients = fit_line(rows, seconds, least)
    launch, per_flop, per_byte = map(float, coefficients)
    off = error(line_seconds(rows, coefficients), seconds)
    return Line(seconds=launch, seconds_per_flop=per_flop, seconds_per_byte=per_byte, error=off, block=block)


def _off(line: Line, works: Sequence[Works], seconds: Sequence[float]) -> float:
    """The mean of how far off logarithms are; what is far off counts as 1."""
    pairs = [(_total(line, row), took) for row, took in zip(works, seconds, strict=True) if took > 0]
    return sum(min(1.0, abs(log(predicted / took))) if predicted else 1.0 for predicted, took in pairs) / max(
        1, len(pairs)
    )


def _seen(line: Line, works: Works, took: float, least: float) -> MeasuredWork:
    predicted, padding = _total(line, works), _padding(works[0], line.block)
    quotient = min(max(took / predicted, 1 / _FARTHEST), _FARTHEST) if predicted else 1.0
    return MeasuredWork(
        flops=works[0].flops * padding,
        nbytes=works[0].nbytes,
        padding=padding,
        quotient=quotient,
        trust=1.0 / (1.0 + (least / took) ** 2),
    )


def _total(line: Line, works: Works) -> float:
    return sum(_of(line, work) for work in works)


def _of(line: Line, work: OperationWork) -> float:
    channels = np.array([work.channels], dtype=np.float64)
    return float(line.of(np.array([work.flops]), np.array([work.nbytes]), channels)[0])


def _padding(work: OperationWork, block: int) -> float:
    return float(padding_of(np.array([work.channels], dtype=np.float64), block)[0])


def line_of(lines: Lines, kind: Kind) -> Line | None:
    """Return the line of a kind, or that of the operation by itself where none was measured behind another one."""
    return lines.get(kind) or lines.get(Kind(kind.operation_class))


def work_seconds(lines: Lines, model: Model) -> float:
    """Return what the operations of a model take together; those without a line take nothing."""
    return sum(_seconds(lines, work) for work in work_of(model))


def seconds_by_kind(lines: Lines, model: Model) -> dict[Kind, float]:
    """Return what the operations of a model take, by the kind whose line says it."""
    seconds: dict[Kind, float] = {}
    for work in work_of(model):
        kind = work.kind if work.kind in lines else Kind(work.kind.operation_class)
        seconds[kind] = seconds.get(kind, 0.0) + _seconds(lines, work)
    return seconds


def _seconds(lines: Lines, work: OperationWork) -> float:
    line = line_of(lines, work.kind)
    return 0.0 if line is None else _of(line, work)


def _others(pair: Pair, lines: Lines) -> float:
    """What the operations of other kinds in the further links take, as far as that is known."""
    return sum(_seconds(lines, work) for work in pair.further if work.kind != pair.kind)


def _row(kind: Kind, works: Works, block: int) -> tuple[float, float, float]:
    by_flops, by_bytes = kind.operation_class in _BY_FLOPS, kind.operation_class in _BY_BYTES
    return (
        float(len(works)),
        by_flops * sum(work.flops * _padding(work, block) for work in works),
        by_bytes * sum(work.nbytes for work in works),
    )
