"""Measuring a device: programs of known work, timed by the host's clock, and lines fitted to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from nnadapter.costs.calibration import Calibration
from nnadapter.costs.calibration_files import driver_version, speed_options
from nnadapter.costs.classes import OperationClass
from nnadapter.costs.fitting import error, fit
from nnadapter.costs.networks import networks
from nnadapter.costs.probes import LONG, SHORT, ClassWork, Probe, probes, tensors_model, work_of
from nnadapter.costs.roofline import Line
from nnadapter.costs.timing import ProgramTimer, ProgramTiming
from nnadapter.drivers.border import ask_profile, open_context
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import INTERFACE_VERSION
from nnadapter.drivers.profile import Profile
from nnadapter.drivers.selection import select_one
from nnadapter.errors import InvalidOptionError, NotDelegatedError
from nnadapter.process.closing import close_all

_Border = tuple[float, float, float]
"""Seconds of a launch, of a tensor that crosses, of a byte of it."""
Clock = Callable[[], float]
"""Seconds that pass; differences count."""
ROUNDS = 31
"""How often every program is timed, in turn with all others; the median counts."""
_BUDGET_SECONDS = 12.0
_TENSORS = (1, 2, 4, 8)
_AT_ONCE = 4
"""Probes, two chains each, that are timed in turn."""
_NOISE = 0.1
"""The share of a run that is not told from noise."""
_BY_FLOPS = frozenset({OperationClass.CONVOLUTION, OperationClass.MATRIX, OperationClass.DEPTHWISE})
_BY_BYTES = frozenset(OperationClass) - {OperationClass.DEPTHWISE}
"""What the time of a class follows: where FLOPs and bytes go together, only one of them can be told."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A short and a long chain of one probe."""

    operation_class: OperationClass
    short: ProgramTiming
    long: ProgramTiming

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
    5. Small networks of mixed operations tell how far what these say together is off.

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
        said = named_call(selected.name, "profile")(ask_profile, context, opened.capability)
        if isinstance(said, Profile) and said.simulated:
            raise InvalidOptionError(
                f"device {device!r} has a simulated clock with these options, and a calibration measures real time; "
                "calibrate it without the simulated clock"
            )
        with ProgramTimer(selected.name, opened.capability, context, clock) as bench:
            pairs, left_out, mixed, small, light = _timed(bench, selected.name, budget_seconds, advance)
    finally:
        named_call(selected.name, "close")(close_all, [context])
    lines = _lines(pairs)
    launch, per_tensor, per_byte = _transfers(light or [pair.short for pair in pairs], small, lines)
    worst = max(line.error for line in lines.values())
    return Calibration(
        device=selected.name,
        driver_version=driver_version(selected.name),
        interface_version=INTERFACE_VERSION,
        options=speed_options(opened.capability.options, selected.options),
        launch_seconds=launch,
        transfer_seconds=per_tensor,
        transfer_seconds_per_byte=per_byte,
        lines=lines,
        off_by=_off_by(mixed, lines, (launch, per_tensor, per_byte)) if mixed else worst,
        left_out=left_out,
    )


def _timed(
    bench: ProgramTimer, device: str, budget_seconds: float, advance: Callable[[], None]
) -> tuple[list[_Pair], dict[OperationClass, str], list[ProgramTiming], list[ProgramTiming], list[ProgramTiming]]:
    """Time every probe that the device can run; say why there is none of a class; then networks, tensors, light ones.

    A few at a time, since a processor gives a few programs threads of their own, and segments have them. Each batch
    has probes of several classes.
    """
    every = probes()
    batches = [range(first, len(every), -(-len(every) // _AT_ONCE)) for first in range(-(-len(every) // _AT_ONCE))]
    share, told = budget_seconds / (len(batches) + 1), _Told(advance, len(batches) + 1)
    pairs: dict[int, _Pair] = {}
    refused: dict[int, str] = {}
    for batch in batches:
        for position in batch:
            pair = _pair(bench, every[position])
            if isinstance(pair, str):
                refused[position] = pair
            else:
                pairs[position] = pair
        bench.run(ROUNDS, share, told.round)
        bench.clear()
    why = {every[position].operation_class: refused[position] for position in sorted(refused, reverse=True)}
    if not pairs:
        said = "; ".join(f"{each.value}: {reason}" for each, reason in list(why.items())[:2])
        raise NotDelegatedError(f"device {device!r} can run none of the programs that are timed: {said}", device=device)
    light = [probe.model(SHORT) for probe in every if probe.operation_class is OperationClass.ELEMENTWISE]
    small = [tensors_model(tensors) for tensors in _TENSORS]
    others = [
        [timed for model in models if isinstance(timed := bench.add(model), ProgramTiming)]
        for models in (networks(), small, light)
    ]
    bench.run(ROUNDS, share, told.round, cold=True)
    bench.clear()
    measured = {pair.operation_class for pair in pairs.values()}
    left_out = {each: reason for each, reason in why.items() if each not in measured}
    return [pairs[position] for position in sorted(pairs)], left_out, others[0], others[1], others[2]


def _pair(bench: ProgramTimer, probe: Probe) -> _Pair | str:
    """Both chains of a probe, or why the device does not run them."""
    short = bench.add(probe.model(SHORT))
    if isinstance(short, str):
        return short
    long = bench.add(probe.model(LONG))
    if isinstance(long, str):
        bench.drop(short)
        return long
    return _Pair(probe.operation_class, short, long)


@dataclass(slots=True)
class _Told:
    """Tells of rounds of several batches as if all were one."""

    advance: Callable[[], None]
    batches: int
    rounds: int = 0

    def round(self) -> None:
        self.rounds += 1
        if self.rounds % self.batches == 0:
            self.advance()


def _lines(pairs: Sequence[_Pair]) -> dict[OperationClass, Line]:
    """A line per class, from what the further links of chains take, and how far off it is."""
    lines: dict[OperationClass, Line] = {}
    for each in dict.fromkeys(pair.operation_class for pair in pairs):
        own = [pair for pair in pairs if pair.operation_class is each]
        rows = [_row(each, _further(pair)[each]) for pair in own]
        seconds = [max(0.0, pair.further_seconds - _others(pair, each, lines)) for pair in own]
        coefficients = fit(rows, seconds, [_NOISE * pair.long.seconds for pair in own])
        launch, per_flop, per_byte = map(float, coefficients)
        lines[each] = Line(
            seconds=launch,
            seconds_per_flop=per_flop,
            seconds_per_byte=per_byte,
            error=float(error(rows, seconds, coefficients)),
        )
    return lines


def _row(each: OperationClass, work: ClassWork) -> tuple[float, float, float]:
    by_flops, by_bytes = float(each in _BY_FLOPS), float(each in _BY_BYTES)
    return float(work.operations), by_flops * work.flops, by_bytes * work.nbytes


def _further(pair: _Pair) -> dict[OperationClass, ClassWork]:
    """The work that the long chain has beside the short one's."""
    short, long = work_of(pair.short.model), work_of(pair.long.model)
    return {each: long[each] - short[each] for each in long}


def _others(pair: _Pair, own: OperationClass, lines: Mapping[OperationClass, Line]) -> float:
    """What the operations of other classes in the further links take, as far as that is known."""
    return sum(
        _seconds(lines[each], work) for each, work in _further(pair).items() if each is not own and each in lines
    )


def _seconds(line: Line, work: ClassWork) -> float:
    return work.operations * line.seconds + work.flops * line.seconds_per_flop + work.nbytes * line.seconds_per_byte


def _off_by(networks_: Sequence[ProgramTiming], lines: Mapping[OperationClass, Line], border: _Border) -> float:
    """How far what is predicted of networks is from what they take, as a share of that: the root mean square."""
    taken = [(timed.seconds, _predicted(timed, lines, border)) for timed in networks_]
    shares = [(predicted - seconds) / seconds for seconds, predicted in taken if seconds > 0]
    return float(np.sqrt(np.mean(np.square(shares)))) if shares else 0.0


def _predicted(timed: ProgramTiming, lines: Mapping[OperationClass, Line], border: _Border) -> float:
    """What the calibration says of a network, as one segment."""
    launch, per_tensor, per_byte = border
    work = sum(_seconds(lines[each], work) for each, work in work_of(timed.model).items() if each in lines)
    return launch + timed.tensors * per_tensor + timed.nbytes * per_byte + work


def _transfers(
    light: Sequence[ProgramTiming], small: Sequence[ProgramTiming], lines: Mapping[OperationClass, Line]
) -> _Border:
    """Seconds of a launch, of a tensor that crosses, and of a byte of it: what operations leave of short programs.

    Programs of little work tell most, so `light` are those of the elementwise class where there are any.
    """
    programs = [*small, *light]
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
