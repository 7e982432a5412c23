"""Measuring a device: programs of known work, timed by the host's clock, and lines fitted to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from nnadapter.closing import close_all
from nnadapter.costs.calibration import Calibration
from nnadapter.costs.calibration_files import driver_version, speed_options
from nnadapter.costs.classes import OperationClass
from nnadapter.costs.fitting import error, fit
from nnadapter.costs.probes import LONG, SHORT, Work, probes, tensors_model, work_of
from nnadapter.costs.roofline import Line
from nnadapter.costs.timing import Bench, Timed
from nnadapter.drivers.border import ask_profile, open_context
from nnadapter.drivers.interface import INTERFACE_VERSION
from nnadapter.drivers.profile import Profile
from nnadapter.drivers.selection import select_one
from nnadapter.errors import InvalidOptionError, NotDelegatedError

Clock = Callable[[], float]
"""Seconds that pass; differences count."""
ROUNDS = 9
"""How often every program is timed, in turn with all others; the median counts."""
_BUDGET_SECONDS = 12.0
_TENSORS = (1, 2, 4, 8)
_NOISE = 0.1
"""The share of a run that is not told from noise."""
_BY_FLOPS = frozenset({OperationClass.CONVOLUTION, OperationClass.MATRIX, OperationClass.DEPTHWISE})
_BY_BYTES = frozenset(OperationClass) - {OperationClass.DEPTHWISE}
"""What the time of a class follows: where FLOPs and bytes go together, only one of them can be told."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A short and a long chain of one probe."""

    operation_class: OperationClass
    short: Timed
    long: Timed

    @property
    def further_seconds(self) -> float:
        """What the long chain takes longer: the median over rounds, in which both ran one behind the other."""
        return median(long - short for short, long in zip(self.short.samples, self.long.samples, strict=True))


def calibrate(
    device: str,
    options: Mapping[str, Any] | None = None,
    *,
    clock: Clock = time.perf_counter,
    advance: Callable[[], None] = lambda: None,
    budget_seconds: float = _BUDGET_SECONDS,
) -> Calibration:
    """Measure a device, in some 20 seconds at most.

    1. Chains of operations, short and long, are compiled; a class that the device refuses is left out, with its reason.
    2. All are timed in turn, `ROUNDS` times or until the budget is spent, and the median of each counts.
    3. Per class: what the further links of a chain take, by FLOPs and bytes.
    4. What is left of short chains is the launch, and the transfers by number and bytes of tensors.

    Args:
        device: its name.
        options: of the device.
        clock: the host's.
        advance: called after each round.
        budget_seconds: when to stop, after three rounds at least.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: there is no such device, or it cannot be used here.
        InvalidOptionError: an option does not fit, or the device's clock is simulated with these.
        NotDelegatedError: it can run none of the programs.
    """
    selected = select_one(device, options or {})
    opened, context = open_context(selected)
    try:
        said = ask_profile(context, opened.capability)
        if isinstance(said, Profile) and said.simulated:
            raise InvalidOptionError(
                f"device {device!r} has a simulated clock with these options, and a calibration measures real time; "
                "calibrate it without the simulated clock"
            )
        with Bench(selected.name, opened.capability, context, clock) as bench:
            pairs, left_out = _compile(bench, selected.name)
            small = [timed for count in _TENSORS if isinstance(timed := bench.add(tensors_model(count)), Timed)]
            bench.run(ROUNDS, budget_seconds, advance)
    finally:
        close_all([context])
    lines, errors = _lines(pairs)
    launch, per_tensor, per_byte = _transfers(pairs, small, lines)
    return Calibration(
        device=selected.name,
        driver_version=driver_version(selected.name),
        interface_version=INTERFACE_VERSION,
        options=speed_options(opened.capability.options, selected.options),
        launch_seconds=launch,
        transfer_seconds=per_tensor,
        transfer_seconds_per_byte=per_byte,
        lines=lines,
        errors=errors,
        left_out=left_out,
    )


def _compile(bench: Bench, device: str) -> tuple[list[_Pair], dict[OperationClass, str]]:
    """Every probe that the device can run, and why there is none of a class."""
    pairs: list[_Pair] = []
    refused: dict[OperationClass, str] = {}
    for probe in probes():
        short = bench.add(probe.model(SHORT))
        long = short if isinstance(short, str) else bench.add(probe.model(LONG))
        if isinstance(short, Timed) and isinstance(long, Timed):
            pairs.append(_Pair(probe.operation_class, short, long))
            continue
        if isinstance(short, Timed):
            bench.drop(short)
        refused.setdefault(probe.operation_class, str(long))
    if not pairs:
        why = "; ".join(f"{each.value}: {reason}" for each, reason in list(refused.items())[:2])
        raise NotDelegatedError(f"device {device!r} can run none of the programs that are timed: {why}", device=device)
    measured = {pair.operation_class for pair in pairs}
    return pairs, {each: why for each, why in refused.items() if each not in measured}


def _lines(pairs: Sequence[_Pair]) -> tuple[dict[OperationClass, Line], dict[OperationClass, float]]:
    """A line per class, from what the further links of chains take, and how far off it is."""
    lines: dict[OperationClass, Line] = {}
    errors: dict[OperationClass, float] = {}
    for each in dict.fromkeys(pair.operation_class for pair in pairs):
        own = [pair for pair in pairs if pair.operation_class is each]
        rows = [_row(each, _further(pair)[each]) for pair in own]
        seconds = [max(0.0, pair.further_seconds - _others(pair, each, lines)) for pair in own]
        found = fit(rows, seconds, [_NOISE * pair.long.seconds for pair in own])
        lines[each] = Line(
            **dict(zip(("seconds", "seconds_per_flop", "seconds_per_byte"), map(float, found), strict=True))
        )
        errors[each] = error(rows, seconds, found)
    return lines, errors


def _row(each: OperationClass, work: Work) -> tuple[float, float, float]:
    by_flops, by_bytes = float(each in _BY_FLOPS), float(each in _BY_BYTES)
    return float(work.operations), by_flops * work.flops, by_bytes * work.nbytes


def _further(pair: _Pair) -> dict[OperationClass, Work]:
    """The work that the long chain has beside the short one's."""
    short, long = work_of(pair.short.model), work_of(pair.long.model)
    return {each: long[each] - short[each] for each in long}


def _others(pair: _Pair, own: OperationClass, lines: Mapping[OperationClass, Line]) -> float:
    """What the operations of other classes in the further links take, as far as that is known."""
    return sum(
        _seconds(lines[each], work) for each, work in _further(pair).items() if each is not own and each in lines
    )


def _seconds(line: Line, work: Work) -> float:
    return work.operations * line.seconds + work.flops * line.seconds_per_flop + work.nbytes * line.seconds_per_byte


def _transfers(
    pairs: Sequence[_Pair], small: Sequence[Timed], lines: Mapping[OperationClass, Line]
) -> tuple[float, float, float]:
    """Seconds of a launch, of a tensor that crosses, and of a byte of it: what operations leave of short programs.

    Programs of little work tell most, so those of the elementwise class are taken where there are any.
    """
    light = [pair.short for pair in pairs if pair.operation_class is OperationClass.ELEMENTWISE]
    programs = [*small, *(light or [pair.short for pair in pairs])]
    # Chains all have as many tensors, which then count as part of the launch.
    rows = [(1.0, float(timed.tensors) if small else 0.0, float(timed.nbytes)) for timed in programs]
    left = [
        max(
            0.0,
            timed.seconds
            - sum(_seconds(lines[each], work) for each, work in work_of(timed.model).items() if each in lines),
        )
        for timed in programs
    ]
    launch, per_tensor, per_byte = map(float, fit(rows, left, [_NOISE * timed.seconds for timed in programs]))
    return launch, per_tensor, per_byte
