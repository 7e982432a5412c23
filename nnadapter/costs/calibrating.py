"""Measuring a device: programs of known work, timed by the host's clock, and lines fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import cpu_count
from typing import Any

from nnadapter.costs.calibration import Calibration, MeasuredNetwork
from nnadapter.costs.calibration_files import driver_version, speed_options
from nnadapter.costs.classes import OperationClass
from nnadapter.costs.company import scale_to_networks
from nnadapter.costs.launches import launches_of
from nnadapter.costs.lines import Lines, Pair, lines_of
from nnadapter.costs.networks import networks
from nnadapter.costs.probes import LONG, SHORT, Probe, probes, tensors_model
from nnadapter.costs.riding import FUSIBLE_CLASSES
from nnadapter.costs.roofline import Line
from nnadapter.costs.stopwatch import Stopwatch
from nnadapter.costs.timing import ProgramTimer, ProgramTiming
from nnadapter.drivers.border import ask_profile, open_context
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import INTERFACE_VERSION, Device
from nnadapter.drivers.isolated import IsolatedDevice
from nnadapter.drivers.onnxruntime.pools import most_pools
from nnadapter.drivers.profile import Profile
from nnadapter.drivers.selection import HOSTS, Selected, select_one
from nnadapter.errors import InvalidOptionError, NotDelegatedError
from nnadapter.ir.model import Model
from nnadapter.process.closing import close_all
from nnadapter.process.processors import (
    Load,
    is_crowded,
    machine_description,
    processors_unused_by_others,
    seconds_of_process,
    usable,
)

ROUNDS = 5
"""How often every program takes a turn, with all others; the lower quartile counts."""
_SEGMENT_ROUNDS = 31
"""How often what runs where a segment stands is run."""
_BUDGET_SECONDS = 20.0
_TURN_SECONDS = 0.005
_TENSORS = (1, 2, 4, 8)
_LEAST_PROCESSOR_SHARE = 0.5
"""Of the processors, that others count as leaving where they left less: they come and go."""
_AT_ONCE = 4
"""Probes, two chains each, that are timed in turn."""


def calibrate(
    device: str,
    options: Mapping[str, Any] | None = None,
    *,
    stopwatch: Stopwatch | None = None,
    advance: Callable[[], None] = lambda: None,
    budget_seconds: float = _BUDGET_SECONDS,
) -> Calibration:
    """Measure a device, in some 30 seconds at most.

    1. Chains of operations, short and long, are compiled; a class that the device refuses is left out, with its reason.
    2. All take turns, `ROUNDS` times or until the budget is spent, and the lower quartile of each counts.
    3. Per kind: what the further links of a chain take, by FLOPs and bytes. Operations that devices fuse are measured
       behind those that they are fused with (`riding.py`).
    4. What is left of programs of little work is the launch, and the transfers by number and bytes of tensors: of
       segments, which stand between others, and of a program that is all that runs.
    5. Small networks of mixed operations scale the kinds, and tell how far off what these say together is
       (`company.py`). While one runs, the host's processors in use are counted: who needs them shares them with others.

    Args:
        device: its name.
        options: of the device.
        stopwatch: times programs; by the host's clock if None, and then others on its processors count as a crowd.
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
        answer = named_call(selected.name, "profile")(ask_profile, context, opened.capability)
        if isinstance(answer, Profile) and answer.simulated:
            raise InvalidOptionError(
                f"device {device!r} has a simulated clock with these options, and a calibration measures real time; "
                "calibrate it without the simulated clock"
            )
        watch, start_load = stopwatch or Stopwatch(turn_seconds=_TURN_SECONDS), Load()
        with ProgramTimer(selected.name, opened.capability, context, watch) as bench:
            measurements = _timed(bench, selected.name, budget_seconds, advance)
        loads = start_load, Load(), cpu_count() or 1, usable()
        # What a device computes in a process of its own is no crowd, and is counted where the system says it.
        is_counted = not isinstance(opened, IsolatedDevice) or seconds_of_process(opened.process_id) is not None
    finally:
        named_call(selected.name, "close")(close_all, [context])
    tells = stopwatch is None and is_counted
    available_processors = processors_unused_by_others(*loads) if tells else float(usable())
    processors = (
        None
        if measurements.processors is None or not is_counted
        else _alone(measurements.processors, available_processors)
    )
    return _calibration(selected, opened, measurements, processors, crowded=tells and is_crowded(*loads))


def _alone(processors: float, available_processors: float) -> float:
    """How many processors would be in use where so many were, and others left so many: beside others one has less."""
    return max(
        processors, min(processors / max(available_processors / usable(), _LEAST_PROCESSOR_SHARE), float(usable()))
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Measurements:
    """What was timed."""

    pairs: list[Pair]
    networks: Mapping[str, ProgramTiming]
    segments: list[ProgramTiming]
    """Of little work, where segments stand."""
    left_out: Mapping[OperationClass, str]
    processors: float | None


def _calibration(
    selected: Selected, opened: Device, measurements: _Measurements, processors: float | None, *, crowded: bool
) -> Calibration:
    """What the times of a device's programs come to."""
    lines: Lines = lines_of(measurements.pairs)
    shorts = [pair.short for pair in measurements.pairs]
    light = [pair.short for pair in measurements.pairs if pair.kind.operation_class in FUSIBLE_CLASSES] or shorts
    launches = launches_of(measurements.segments or shorts, light, lines, crosses=selected.name not in HOSTS)
    scaled_costs = scale_to_networks(lines, launches, measurements.networks)
    lines, launches = scaled_costs.lines, scaled_costs.launches
    return Calibration(
        device=selected.name,
        driver_version=driver_version(selected.name),
        interface_version=INTERFACE_VERSION,
        options=speed_options(opened.capability.options, selected.options, isolated=selected.limits is not None),
        machine=machine_description(),
        crowded=crowded,
        processors=processors,
        launch_seconds=launches.segment,
        alone_seconds=launches.alone,
        transfer_seconds=launches.tensor,
        transfer_seconds_per_byte=launches.byte,
        lines={kind.operation_class: line for kind, line in lines.items() if kind.behind is None},
        riding=_fused_lines(lines),
        networks={
            name: MeasuredNetwork(seconds=timed.seconds, predicted=scaled_costs.predicted[name])
            for name, timed in measurements.networks.items()
        },
        left_out=measurements.left_out,
    )


def _timed(bench: ProgramTimer, device: str, budget_seconds: float, advance: Callable[[], None]) -> _Measurements:
    """Time every probe that the device can run; say why there is none of a class; then networks and segments.

    A few at a time, since each may have threads and memory of its own. Each batch has probes of several classes.
    Networks are held against each other, so all take turns, as far as threads allow: what disturbs the machine for a
    while disturbs them alike.
    """
    every, mixed = probes(), list(networks().items())
    batches, network_batches = _batches(len(every), _AT_ONCE), _batches(len(mixed), most_pools())
    count = len(batches) + len(network_batches)
    share, progress = budget_seconds / (count + 1), _Told(advance, count)
    pairs: dict[int, Pair] = {}
    refused: dict[int, str] = {}
    for batch in batches:
        for position in batch:
            pair = _pair(bench, every[position])
            if isinstance(pair, str):
                refused[position] = pair
            else:
                pairs[position] = pair
        bench.run(ROUNDS, share, progress.round)
        bench.clear()
    reasons = {every[position].kind.operation_class: refused[position] for position in sorted(refused, reverse=True)}
    if not pairs:
        summary = "; ".join(
            f"{operation_class.value}: {reason}" for operation_class, reason in list(reasons.items())[:2]
        )
        raise NotDelegatedError(
            f"device {device!r} can run none of the programs that are timed: {summary}", device=device
        )
    timed: dict[str, ProgramTiming] = {}
    processor_counts: list[float] = []
    for batch in network_batches:
        added = {name: bench.add(model, is_standalone=True) for name, model in (mixed[position] for position in batch)}
        able = {name: timing for name, timing in added.items() if isinstance(timing, ProgramTiming)}
        bench.run(ROUNDS, share, progress.round)
        if able:
            timed |= able
            processor_counts.append(bench.processors())
        bench.clear()
    light = (probe.model(SHORT) for probe in every if probe.kind.operation_class is OperationClass.ELEMENTWISE)
    segments = _able(bench, (*map(tensors_model, _TENSORS), *light))
    bench.run(_SEGMENT_ROUNDS, share, lambda: None, cold=True)
    bench.clear()
    measured = {pair.kind.operation_class for pair in pairs.values() if pair.kind.behind is None}
    return _Measurements(
        pairs=[pairs[position] for position in sorted(pairs)],
        networks=timed,
        segments=segments,
        left_out={
            operation_class: reason for operation_class, reason in reasons.items() if operation_class not in measured
        },
        processors=max(processor_counts, default=None),
    )


def _batches(count: int, most: int) -> list[range]:
    """Positions of so many in batches of `most`; neighbors, which are of one class, are in different ones."""
    batches = -(-count // most)
    return [range(first, count, batches) for first in range(batches)]


def _able(bench: ProgramTimer, models: Iterable[Model]) -> list[ProgramTiming]:
    """Those that the device runs."""
    return [timed for model in models if isinstance(timed := bench.add(model), ProgramTiming)]


def _pair(bench: ProgramTimer, probe: Probe) -> Pair | str:
    """Both chains of a probe, or why the device does not run them."""
    short = bench.add(probe.model(SHORT), is_standalone=True)
    if isinstance(short, str):
        return short
    long = bench.add(probe.model(LONG), is_standalone=True)
    if isinstance(long, str):
        bench.drop(short)
        return long
    return Pair(probe.kind, short, long)


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


def _fused_lines(lines: Lines) -> dict[OperationClass, dict[OperationClass, Line]]:
    """Lines of what comes behind others, by what it comes behind."""
    riding: dict[OperationClass, dict[OperationClass, Line]] = {}
    for kind, line in lines.items():
        if kind.behind is not None:
            riding.setdefault(kind.behind, {})[kind.operation_class] = line
    return riding
