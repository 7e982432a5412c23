"""Calibration of a device: programs timed in turns on the host's clock, and cost lines fitted to the times."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from math import log
from operator import mul
from os import cpu_count
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_line

from nnadapter.costs.calibration import Calibration, MeasuredNetwork, driver_version, speed_options
from nnadapter.costs.probes import (
    LONG,
    SHORT,
    OperationWork,
    Probe,
    networks,
    onnx_form,
    probes,
    tensors_model,
    work_of,
)
from nnadapter.costs.work import FUSIBLE_CLASSES, Kind, Line, MeasuredWork, Numbers, OperationClass, padding_of
from nnadapter.drivers import boundary
from nnadapter.drivers.capability import Capability, ModelForm, Profile, Threading
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import INTERFACE_VERSION, Context, Device, Execution, Program
from nnadapter.drivers.isolation.isolated_device import IsolatedDevice
from nnadapter.drivers.onnxruntime.program import most_pools, not_counting, pools_held
from nnadapter.drivers.registry import device_lock, device_of
from nnadapter.drivers.selection import HOSTS, Selected, select_one
from nnadapter.errors import InvalidOptionError, NotDelegatedError, describe
from nnadapter.ir import Array, Model
from nnadapter.process.processors import (
    Load,
    is_crowded,
    machine_description,
    own_seconds,
    processors_unused_by_others,
    seconds_of_process,
    usable,
)
from nnadapter.process.resources import close_all
from nnadapter.records import dataclass, field, replace
from partition.graph import all_of

_MOST_RUNS = 50
_LOOK_SECONDS = 0.002
_QUIET = 6
"""Consecutive checks that must find the process idle, since processor time is counted in ticks."""
_LOOKS = 75
"""Maximum number of idle checks, since threads may never rest."""
_RESTING = 0.25
"""Largest mean number of processors that an idle process uses during a check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Clocks to time programs with. Tests replace them."""

    clock: Callable[[], float] = field(default_factory=lambda: time.perf_counter)
    busy: Callable[[], float] = field(default_factory=lambda: own_seconds)
    """Function that returns the processor seconds used by this process, or by a simulated device."""
    sleep: Callable[[float], None] = field(default_factory=lambda: time.sleep)
    turn_seconds: float = 0.02

    def turn(self, run: Callable[[], object]) -> float:
        """Run repeatedly for `turn_seconds`; return the median seconds of one run."""
        self.wait_until_process_idle()
        first = self.seconds(run)
        if first >= self.turn_seconds:
            return first
        samples = [self.seconds(run)]
        while sum(samples) < self.turn_seconds and len(samples) < _MOST_RUNS:
            samples.append(self.seconds(run))
        return median(samples)

    def wait_until_process_idle(self) -> None:
        quiet = 0
        for _ in range(_LOOKS):
            start_busy, started = self.busy(), self.clock()
            self.sleep(_LOOK_SECONDS)
            quiet = quiet + 1 if self.busy() - start_busy <= _RESTING * (self.clock() - started) else 0
            if quiet == _QUIET:
                return

    def seconds(self, run: Callable[[], object]) -> float:
        started = self.clock()
        run()
        return self.clock() - started


_LEAST_ROUNDS = 3
_LOOKED_AT_SECONDS = 0.05
_LONGEST_SECONDS = 0.5
"""Slower programs are not timed, so that a calibration ends."""


@dataclass(eq=False)
class ProgramTiming:
    """Program and the seconds of its runs."""

    model: Model
    execution: Execution
    inputs: Sequence[Array]
    outputs: Sequence[str]
    expected: boundary.OutputCheck
    samples: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Lower quartile of the samples: noise only adds time, and the minimum may be luck."""
        return sorted(self.samples)[len(self.samples) // 4]

    @property
    def tensors(self) -> int:
        return len(self.model.inputs) + len(self.model.outputs)

    @property
    def nbytes(self) -> int:
        return sum(self.model.operands[operand].type.nbytes for operand in (*self.model.inputs, *self.model.outputs))


class ProgramTimer:
    """Programs timed on one device, closed on exit."""

    def __init__(self, name: str, capability: Capability, context: Context, stopwatch: Stopwatch) -> None:
        self._capability = capability
        self._context = context
        self._stopwatch, self._clock = stopwatch, stopwatch.clock
        self._resources: list[Program | Execution] = []
        self._programs: list[ProgramTiming] = []
        is_serial = capability.threading is Threading.SERIAL
        self._lock: AbstractContextManager[object] = device_lock(name) if is_serial else nullcontext()

    def __enter__(self) -> ProgramTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def add(self, model: Model, *, is_standalone: bool = False) -> ProgramTiming | str:
        """Compile a model and run it twice, unrecorded. Return its timing, or why there is none."""
        sent = self._form(model)
        verdict = all_of(boundary.ask_supported(self._context, sent, len(model.operations)))
        verdict = boundary.ask_admission(self._context, sent).verdict if verdict else verdict
        if not verdict:
            return str(verdict)
        try:
            timed = self._compiled(model, sent, is_standalone)
        except Exception as error:  # noqa: BLE001  drivers may raise anything; such programs are not timed
            return f"it failed: {describe(error)}"
        if timed is None:
            return f"one run takes longer than {_LONGEST_SECONDS} seconds"
        self._programs.append(timed)
        return timed

    def drop(self, timed: ProgramTiming) -> None:
        self._programs.remove(timed)

    def clear(self) -> None:
        resources = self._resources.copy()
        self._resources.clear()
        self._programs.clear()
        close_all(reversed(resources))

    def run(self, rounds: int, budget_seconds: float, advance: Callable[[], None], *, cold: bool = False) -> None:
        """Time every program once per round, in shuffled order, so that disturbances affect all programs.

        A time is the median of several runs or, if `cold`, one run after host work that evicts the caches.
        """
        started, chance = self._clock(), random.Random(0)
        for round_index in range(rounds):
            if round_index >= _LEAST_ROUNDS and self._clock() - started > budget_seconds:
                return
            for timed in chance.sample(self._programs, len(self._programs)):
                if cold:
                    np.negative(_SWEPT, out=_SWEPT)
                timed.samples.append(self._sample(timed) if cold else self._stopwatch.turn(partial(self._once, timed)))
            advance()

    def processors(self) -> float:
        """Return the host processors in use while the slowest program computes."""
        timed = max(self._programs, key=lambda program: program.seconds)
        start_busy, started, passed = self._stopwatch.busy(), self._clock(), 0.0
        while passed < _LOOKED_AT_SECONDS:
            self._once(timed)
            elapsed = self._clock() - started
            if elapsed <= passed:  # stopped clock
                return 0.0
            passed = elapsed
        return (self._stopwatch.busy() - start_busy) / passed

    def _form(self, model: Model) -> object:
        return model if self._capability.form is ModelForm.IR else onnx_form(model)

    def _compiled(self, model: Model, sent: object, is_standalone: bool) -> ProgramTiming | None:
        compile_ = self._context.compile_whole_graph if is_standalone else self._context.compile
        with not_counting(pools_held()):  # it uses threads regardless of other sessions and programs
            program = boundary.checked_program(compile_(sent))
        self._resources.append(program)
        execution = boundary.create_execution(program)
        self._resources.append(execution)
        generator = np.random.default_rng(0)
        types = [model.operands[operand].type for operand in model.inputs]
        numbers = [generator.standard_normal(type_.dimensions, np.float32) for type_ in types]
        inputs = [
            boundary.read_only(array.astype(type_.dtype.array_type, copy=False))
            for array, type_ in zip(numbers, types, strict=True)
        ]
        outputs = [model.operands[operand] for operand in model.outputs]
        expected = [(operand.type.dimensions, operand.type.dtype.array_type) for operand in outputs]
        timed = ProgramTiming(model, execution, inputs, [operand.name for operand in outputs], expected)
        self._sample(timed)
        return timed if self._sample(timed) <= _LONGEST_SECONDS else None

    def _sample(self, timed: ProgramTiming) -> float:
        return self._stopwatch.seconds(partial(self._once, timed))

    def _once(self, timed: ProgramTiming) -> None:
        with self._lock:
            results = timed.execution.compute([boundary.read_only(array) for array in timed.inputs])
            boundary.check_results(list(results), timed.outputs, timed.expected)


_SWEPT = np.ones(1 << 20, np.float32)
"""Negating it evicts caches without a matrix product, which would leave BLAS threads spinning."""


_ROUNDS = 20
_LEAST_SHARE = 0.05
_TRUSTED = 0.1


def fit(rows: Sequence[Sequence[float]], seconds: Sequence[float], least: Sequence[float] | None = None) -> Numbers:
    """Return the non-negative coefficients for which `rows` best predict `seconds`.

    Errors are relative to `seconds`, or to the uncertainties `least` if larger. The most negative coefficient is
    removed until none is negative. Outliers have less weight (Huber: Robust Estimation of a Location Parameter, 1964,
    by iteratively reweighted least squares).
    """
    times = np.asarray(seconds, dtype=np.float64)
    matrix = np.asarray(rows, dtype=np.float64).reshape(len(times), -1)
    coefficients = np.zeros(matrix.shape[1])
    unit = np.maximum(times, 0.0 if least is None else np.asarray(least))
    is_positive = unit > 0
    if not times[is_positive].any():
        return coefficients
    weighed, target = matrix[is_positive] / unit[is_positive, None], times[is_positive] / unit[is_positive]
    trust = np.ones(len(target))
    for _ in range(_ROUNDS):
        coefficients = _non_negative(weighed * trust[:, None], target * trust)
        off = np.abs(weighed @ coefficients - target)
        previous_trust, trust = trust, np.sqrt(np.minimum(1.0, _TRUSTED / np.maximum(off, 1e-12)))
        if np.array_equal(trust, previous_trust):  # converged
            break
    return coefficients


def fit_line(rows: Sequence[Sequence[float]], seconds: Sequence[float], least: Sequence[float]) -> Numbers:
    """Return non-negative a, b and c of a `Line`; `rows` are [number of operations, FLOPs, bytes].

    hypot(x, y) equals p x + q y with p = x / hypot(x, y) and q = y / hypot(x, y). Each round takes p and q from the
    previous round, so the problem is linear.
    """
    matrix = np.asarray(rows, dtype=np.float64).reshape(len(seconds), 3)
    shares = np.full((len(seconds), 2), np.sqrt(0.5))
    coefficients = np.zeros(3)
    for _ in range(_ROUNDS):
        rows_now = np.column_stack([matrix[:, 0], matrix[:, 1:] * shares])
        coefficients = fit(rows_now.tolist(), seconds, least)
        sides = matrix[:, 1:] * coefficients[1:]
        length = np.hypot(sides[:, 0], sides[:, 1])
        fitted_shares = np.divide(sides, length[:, None], out=np.zeros_like(sides), where=length[:, None] > 0)
        # A side that was removed can return.
        shares = np.clip((shares + fitted_shares) / 2, _LEAST_SHARE, 1.0)
    return coefficients


def line_seconds(rows: Sequence[Sequence[float]], coefficients: Numbers) -> Numbers:
    """Return the seconds of `rows` for a, b and c of a `Line`."""
    matrix = np.asarray(rows, dtype=np.float64).reshape(-1, 3)
    predicted: Numbers = matrix[:, 0] * coefficients[0] + np.hypot(*(matrix[:, 1:] * coefficients[1:]).T)
    return predicted


def _non_negative(matrix: Numbers, target: Numbers) -> Numbers:
    coefficients = np.zeros(matrix.shape[1])
    scale = np.abs(matrix).max(axis=0)
    active = np.flatnonzero(scale > 0)
    while len(active):
        solved = np.linalg.lstsq(matrix[:, active] / scale[active], target, rcond=None)[0]
        if solved.min() >= 0:
            coefficients[active] = solved / scale[active]
            break
        active = np.delete(active, solved.argmin())
    return coefficients


def error(fitted: Numbers, seconds: Sequence[float]) -> float:
    """Return the median relative error |fitted - measured| / measured."""
    times = np.asarray(seconds, dtype=np.float64)
    positive = times > 0
    if not positive.any():
        return 0.0
    return float(np.median(np.abs(fitted - times)[positive] / times[positive]))


Lines = Mapping[Kind, Line]
Works = Sequence[OperationWork]
NOISE = 0.1
"""Share of a run's time that may be noise."""
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
_BLOCKS = (1, 4, 8, 16, 32)
"""Numbers of channels that kernels may compute at once."""
_CLEARLY = 0.8
"""A block size is used only if it reduces the error below this ratio."""
_FARTHEST = 16.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Short and long chain of one probe."""

    kind: Kind
    short: ProgramTiming
    long: ProgramTiming

    @property
    def further_seconds(self) -> float:
        return self.long.seconds - self.short.seconds

    @property
    def further(self) -> Sequence[OperationWork]:
        return tuple((Counter(work_of(self.long.model)) - Counter(work_of(self.short.model))).elements())


def lines_of(pairs: Sequence[Pair]) -> dict[Kind, Line]:
    """Return a line per kind, fitted to the differences between long and short chains."""
    lines: dict[Kind, Line] = {}
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        kind_pairs = [pair for pair in pairs if pair.kind == kind]
        works = [[work for work in pair.further if work.kind == kind] for pair in kind_pairs]
        seconds = [max(0.0, pair.further_seconds - _seconds_of_other_kinds(pair, lines)) for pair in kind_pairs]
        lines[kind] = _line(kind, works, seconds, [NOISE * pair.long.seconds for pair in kind_pairs])
    return lines


def _line(kind: Kind, works: Sequence[Works], seconds: Sequence[float], least: Sequence[float]) -> Line:
    blocks = _BLOCKS if any(any(work.channels) for row in works for work in row) else _BLOCKS[:1]
    lines = [_fitted(kind, works, seconds, least, block) for block in blocks]
    off = [_off(line, works, seconds) for line in lines]
    best = min(range(len(lines)), key=off.__getitem__)
    line = lines[best if off[best] < _CLEARLY * off[0] else 0]
    measured_works = tuple(
        _measured_work(line, row, *measurement)
        for row, *measurement in zip(works, seconds, least, strict=True)
        if measurement[0] > 0
    )
    return replace_line(line, measured_work=measured_works)


def _fitted(kind: Kind, works: Sequence[Works], seconds: Sequence[float], least: Sequence[float], block: int) -> Line:
    rows = [_row(kind, row, block) for row in works]
    coefficients = fit_line(rows, seconds, least)
    launch, per_flop, per_byte = map(float, coefficients)
    off = error(line_seconds(rows, coefficients), seconds)
    return Line(seconds=launch, seconds_per_flop=per_flop, seconds_per_byte=per_byte, error=off, block=block)


def _off(line: Line, works: Sequence[Works], seconds: Sequence[float]) -> float:
    pairs = [(_total(line, row), took) for row, took in zip(works, seconds, strict=True) if took > 0]
    return sum(min(1.0, abs(log(predicted / took))) if predicted else 1.0 for predicted, took in pairs) / max(
        1, len(pairs)
    )


def _measured_work(line: Line, works: Works, took: float, least: float) -> MeasuredWork:
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


def seconds_by_kind(lines: Lines, model: Model) -> dict[Kind, float]:
    """Return a model's seconds by kind of cost line."""
    seconds: dict[Kind, float] = {}
    for work in work_of(model):
        kind = work.kind if work.kind in lines else Kind(work.kind.operation_class)
        seconds[kind] = seconds.get(kind, 0.0) + _seconds(lines, work)
    return seconds


def _seconds(lines: Lines, work: OperationWork) -> float:
    line = lines.get(work.kind) or lines.get(Kind(work.kind.operation_class))
    return 0.0 if line is None else _of(line, work)


def _seconds_of_other_kinds(pair: Pair, lines: Lines) -> float:
    return sum(_seconds(lines, work) for work in pair.further if work.kind != pair.kind)


def _row(kind: Kind, works: Works, block: int) -> tuple[float, float, float]:
    by_flops, by_bytes = kind.operation_class in _BY_FLOPS, kind.operation_class in _BY_BYTES
    return (
        float(len(works)),
        by_flops * sum(work.flops * _padding(work, block) for work in works),
        by_bytes * sum(work.nbytes for work in works),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Launch and transfer seconds, see `Calibration`."""

    segment: float
    sole_segment: float
    tensor: float
    byte: float

    def crossing(self, timed: ProgramTiming) -> float:
        return timed.tensors * self.tensor + timed.nbytes * self.byte


def launches_of(
    segments: Sequence[ProgramTiming], standalone_programs: Sequence[ProgramTiming], lines: Lines, *, crosses: bool
) -> Launches:
    """Estimate launch and transfer seconds: the part of light programs' times that their operations do not explain.

    `segments` ran with cold caches. On the host, `crosses` is False: transfers are then part of the launch.
    """
    several = len({timed.tensors for timed in segments}) > 1
    # With equal numbers of tensors, their cost is part of the launch.
    rows = [(1.0, float(timed.tensors) if several else 0.0, float(timed.nbytes)) for timed in segments]
    segment, tensor, byte = map(float, fit(rows, _unexplained_seconds(segments, lines), _least(segments)))
    launches = Launches(segment=segment, sole_segment=segment, tensor=tensor, byte=byte)
    residuals = [
        max(0.0, seconds - launches.crossing(timed) * crosses)
        for timed, seconds in zip(standalone_programs, _unexplained_seconds(standalone_programs, lines), strict=True)
    ]
    standalone_seconds = float(fit([(1.0,)] * len(residuals), residuals, _least(standalone_programs))[0])
    return Launches(segment=max(segment, standalone_seconds), sole_segment=standalone_seconds, tensor=tensor, byte=byte)


def _unexplained_seconds(programs: Sequence[ProgramTiming], lines: Lines) -> list[float]:
    return [max(0.0, timed.seconds - sum(_seconds(lines, work) for work in work_of(timed.model))) for timed in programs]


def _least(programs: Sequence[ProgramTiming]) -> list[float]:
    return [NOISE * timed.seconds for timed in programs]


_SLACK = 3.0
"""Deviation of a scaling factor from 1 that weighs as much as a prediction error of 100 %."""
_MOST = 4.0
_FEWEST = 6


@dataclass(frozen=True, slots=True)
class NetworkScaledCosts:
    """Lines and launches, scaled to fit the times of networks."""

    lines: Lines
    launches: Launches
    predicted: Mapping[str, float]
    """Leave-one-out predictions of the networks."""


def scale_to_networks(lines: Lines, launches: Launches, networks: Mapping[str, ProgramTiming]) -> NetworkScaledCosts:
    """Return lines and launches scaled by non-negative factors that fit the times of networks.

    The fit is robust least squares, with a penalty for factors other than 1. Leave-one-out cross-validation gives its
    error.
    """
    kinds = list(lines)
    rows = {name: _network_row(lines, launches, kinds, timed) for name, timed in networks.items()}
    if len(rows) < _FEWEST:
        return NetworkScaledCosts(lines, launches, {name: sum(row) for name, row in rows.items()})
    factors = _factors(list(rows.values()), [timed.seconds for timed in networks.values()])
    scaled = {kind: _scaled(lines[kind], factor) for kind, factor in zip(kinds, factors, strict=False)}
    predicted = {}
    for name, row in rows.items():
        training_names = [other for other in rows if other != name]
        without = _factors(
            [rows[other] for other in training_names], [networks[other].seconds for other in training_names]
        )
        predicted[name] = sum(map(mul, row, without))
    return NetworkScaledCosts(scaled, replace(launches, sole_segment=launches.sole_segment * factors[-1]), predicted)


def _network_row(lines: Lines, launches: Launches, kinds: Sequence[Kind], timed: ProgramTiming) -> list[float]:
    by_kind = seconds_by_kind(lines, timed.model)
    return [*(by_kind.get(kind, 0.0) for kind in kinds), launches.sole_segment + launches.crossing(timed)]


def _factors(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    ones = np.eye(len(rows[0])).tolist()
    least = [0.0] * len(rows) + [_SLACK] * len(ones)
    factors = fit([*rows, *ones], [*seconds, *[1.0] * len(ones)], least)
    return [min(max(float(factor), 1 / _MOST), _MOST) for factor in factors]


def _scaled(line: Line, factor: float) -> Line:
    return replace_line(
        line,
        seconds=line.seconds * factor,
        seconds_per_flop=line.seconds_per_flop * factor,
        seconds_per_byte=line.seconds_per_byte * factor,
    )


ROUNDS = 5
_SEGMENT_ROUNDS = 31
_BUDGET_SECONDS = 20.0
_TURN_SECONDS = 0.005
_TENSORS = (1, 2, 4, 8)
_LEAST_PROCESSOR_SHARE = 0.5
_AT_ONCE = 4


def calibrate(
    device: str,
    options: Mapping[str, Any] | None = None,
    *,
    stopwatch: Stopwatch | None = None,
    advance: Callable[[], None] = lambda: None,
    budget_seconds: float = _BUDGET_SECONDS,
) -> Calibration:
    """Measure a device; takes up to about 30 seconds.

    Short and long chains of operations are timed in turns, and a line per kind is fitted to their differences. Small
    mixed networks scale the lines and show their error.

    `stopwatch` defaults to the host's clock, which also detects other load. `advance` is called after each round.
    `budget_seconds` limits the time, but at least three rounds run.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: the device does not exist or cannot be used.
        InvalidOptionError: an option does not fit, or makes the device's clock simulated.
        NotDelegatedError: the device can run none of the programs.
    """
    selected = select_one(device, options or {})
    opened, context = boundary.open_context(selected)
    try:
        answer = named_call(selected.name, "profile")(boundary.ask_profile, context, opened.capability)
        if isinstance(answer, Profile) and answer.simulated:
            raise InvalidOptionError(
                f"device {device!r} has a simulated clock with these options, and a calibration measures real time; "
                "calibrate it without the simulated clock"
            )
        watch, start_load = stopwatch or Stopwatch(turn_seconds=_TURN_SECONDS), Load()
        with ProgramTimer(selected.name, opened.capability, context, watch) as bench:
            measurements = _timed(bench, selected.name, budget_seconds, advance)
        loads = start_load, Load(), cpu_count() or 1, usable()
        # a device process is no foreign load, and is counted if the system reports it
        is_counted = not isinstance(opened, IsolatedDevice) or seconds_of_process(opened.process_id) is not None
    finally:
        named_call(selected.name, "close")(close_all, [context])
    tells = stopwatch is None and is_counted
    available_processors = processors_unused_by_others(*loads) if tells else float(usable())
    processors = (
        None
        if measurements.processors is None or not is_counted
        else _uncontended_processors(measurements.processors, available_processors)
    )
    return _calibration(selected, opened, measurements, processors, crowded=tells and is_crowded(*loads))


def _uncontended_processors(processors: float, available_processors: float) -> float:
    return max(
        processors, min(processors / max(available_processors / usable(), _LEAST_PROCESSOR_SHARE), float(usable()))
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Measurements:
    pairs: list[Pair]
    networks: Mapping[str, ProgramTiming]
    segments: list[ProgramTiming]
    unmeasured_classes: Mapping[OperationClass, str]
    processors: float | None


def _calibration(
    selected: Selected, opened: Device, measurements: _Measurements, processors: float | None, *, crowded: bool
) -> Calibration:
    lines: Lines = lines_of(measurements.pairs)
    shorts = [pair.short for pair in measurements.pairs]
    light = [pair.short for pair in measurements.pairs if pair.kind.operation_class in FUSIBLE_CLASSES] or shorts
    launches = launches_of(measurements.segments or shorts, light, lines, crosses=selected.name not in HOSTS)
    scaled_costs = scale_to_networks(lines, launches, measurements.networks)
    lines, launches = scaled_costs.lines, scaled_costs.launches
    return Calibration(
        device=device_of(selected.name),
        driver_version=driver_version(selected.name),
        interface_version=INTERFACE_VERSION,
        options=speed_options(opened.capability.options, selected.options, isolated=selected.limits is not None),
        machine=machine_description(),
        crowded=crowded,
        processors=processors,
        launch_seconds=launches.segment,
        sole_launch_seconds=launches.sole_segment,
        transfer_seconds=launches.tensor,
        transfer_seconds_per_byte=launches.byte,
        lines={kind.operation_class: line for kind, line in lines.items() if kind.producer_class is None},
        fused_lines=_fused_lines(lines),
        networks={
            name: MeasuredNetwork(seconds=timed.seconds, predicted=scaled_costs.predicted[name])
            for name, timed in measurements.networks.items()
        },
        unmeasured_classes=measurements.unmeasured_classes,
    )


def _timed(bench: ProgramTimer, device: str, budget_seconds: float, advance: Callable[[], None]) -> _Measurements:
    """Time supported probes, then networks and cold segments.

    Batches are small, as each program may have threads of its own.
    """
    every, mixed = probes(), list(networks().items())
    batches, network_batches = _batches(len(every), _AT_ONCE), _batches(len(mixed), most_pools())
    batch_count = len(batches) + len(network_batches)
    share, rounds = budget_seconds / (batch_count + 1), count(1)

    def advance_together() -> None:
        if next(rounds) % batch_count == 0:
            advance()

    pairs: dict[int, Pair] = {}
    refused: dict[int, str] = {}
    for batch in batches:
        for position in batch:
            pair = _pair(bench, every[position])
            if isinstance(pair, str):
                refused[position] = pair
            else:
                pairs[position] = pair
        bench.run(ROUNDS, share, advance_together)
        bench.clear()
    reasons = {every[position].kind.operation_class: refused[position] for position in sorted(refused, reverse=True)}
    if not pairs:
        summary = "; ".join(
            f"{operation_class.value}: {reason}" for operation_class, reason in list(reasons.items())[:2]
        )
        raise NotDelegatedError(f"device {device!r} can run none of the timed programs: {summary}", device=device)
    timed: dict[str, ProgramTiming] = {}
    processor_counts: list[float] = []
    for batch in network_batches:
        added = {name: bench.add(model, is_standalone=True) for name, model in (mixed[position] for position in batch)}
        able = {name: timing for name, timing in added.items() if isinstance(timing, ProgramTiming)}
        bench.run(ROUNDS, share, advance_together)
        if able:
            timed |= able
            processor_counts.append(bench.processors())
        bench.clear()
    light = (probe.model(SHORT) for probe in every if probe.kind.operation_class is OperationClass.ELEMENTWISE)
    segments = _able(bench, (*map(tensors_model, _TENSORS), *light))
    bench.run(_SEGMENT_ROUNDS, share, lambda: None, cold=True)
    bench.clear()
    measured = {pair.kind.operation_class for pair in pairs.values() if pair.kind.producer_class is None}
    return _Measurements(
        pairs=[pairs[position] for position in sorted(pairs)],
        networks=timed,
        segments=segments,
        unmeasured_classes={
            operation_class: reason for operation_class, reason in reasons.items() if operation_class not in measured
        },
        processors=max(processor_counts, default=None),
    )


def _batches(count: int, most: int) -> list[range]:
    batches = -(-count // most)
    return [range(first, count, batches) for first in range(batches)]


def _able(bench: ProgramTimer, models: Iterable[Model]) -> list[ProgramTiming]:
    return [timed for model in models if isinstance(timed := bench.add(model), ProgramTiming)]


def _pair(bench: ProgramTimer, probe: Probe) -> Pair | str:
    short = bench.add(probe.model(SHORT), is_standalone=True)
    if isinstance(short, str):
        return short
    long = bench.add(probe.model(LONG), is_standalone=True)
    if isinstance(long, str):
        bench.drop(short)
        return long
    return Pair(probe.kind, short, long)


def _fused_lines(lines: Lines) -> dict[OperationClass, dict[OperationClass, Line]]:
    riding: dict[OperationClass, dict[OperationClass, Line]] = {}
    for kind, line in lines.items():
        if kind.producer_class is not None:
            riding.setdefault(kind.producer_class, {})[kind.operation_class] = line
    return riding
