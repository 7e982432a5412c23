"""Calibration of a device: programs timed in turns on the host's clock, and cost lines fitted to the times."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import log
from os import cpu_count
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_line

from nnadapter.costs.calibration import Calibration, MeasuredNetwork, driver_version, speed_options
from nnadapter.costs.probes import LONG, SHORT, OperationWork, Probe, networks, probes, tensors_model, work_of
from nnadapter.costs.work import FUSIBLE_CLASSES, Kind, Line, MeasuredWork, Numbers, OperationClass, padding_of
from nnadapter.drivers.boundary import (
    OutputCheck,
    ask_admission,
    ask_profile,
    ask_supported,
    check_results,
    checked_program,
    create_execution,
    open_context,
    read_only,
)
from nnadapter.drivers.capability import Capability, ModelForm, Profile, Threading
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import INTERFACE_VERSION, Context, Device, Execution, Program
from nnadapter.drivers.isolation.isolated_device import IsolatedDevice
from nnadapter.drivers.onnxruntime.program import most_pools, not_counting, pools_held
from nnadapter.drivers.registry import device_lock
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
from partition.graph import all_of

_MOST_RUNS = 50
_LOOK_SECONDS = 0.002
"""For so long a look at the processor time lasts."""
_QUIET = 6
"""Looks in a row: of a thread that runs, systems count the processor time at their ticks, 4 to 10 ms apart."""
_LOOKS = 75
"""Looks at most: other threads of the program may never rest."""
_RESTING = 0.25
"""Processors in use by whom rests, the one that looks included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Times turns. The first three are seconds of clocks, of which differences count."""

    clock: Callable[[], float] = field(default_factory=lambda: time.perf_counter)
    """That passes."""
    busy: Callable[[], float] = field(default_factory=lambda: own_seconds)
    """Of processors, that this process used, or a device in a process of its own."""
    sleep: Callable[[float], None] = field(default_factory=lambda: time.sleep)
    turn_seconds: float = 0.02
    """A turn of short runs takes about so long."""

    def turn(self, run: Callable[[], object]) -> float:
        """Return the seconds of one run, by a turn of it."""
        self.wait_until_process_idle()
        first = self._seconds(run)
        if first >= self.turn_seconds:
            return first
        samples = [self._seconds(run)]
        while sum(samples) < self.turn_seconds and len(samples) < _MOST_RUNS:
            samples.append(self._seconds(run))
        return median(samples)

    def wait_until_process_idle(self) -> None:
        """Wait until nothing in this process computes, as long as that may be expected."""
        quiet = 0
        for _ in range(_LOOKS):
            start_busy, started = self.busy(), self.clock()
            self.sleep(_LOOK_SECONDS)
            quiet = quiet + 1 if self.busy() - start_busy <= _RESTING * (self.clock() - started) else 0
            if quiet == _QUIET:
                return

    def _seconds(self, run: Callable[[], object]) -> float:
        started = self.clock()
        run()
        return self.clock() - started


_LEAST_ROUNDS = 3
_LOOKED_AT_SECONDS = 0.05
"""For so long a program runs while the processors in use are counted."""
_LONGEST_SECONDS = 0.5
"""A program that takes longer is not timed: a calibration must end."""


@dataclass(eq=False)
class ProgramTiming:
    """One program and what its runs took."""

    model: Model
    execution: Execution
    inputs: Sequence[Array]
    outputs: Sequence[str]
    expected: OutputCheck
    samples: list[float] = field(default_factory=list)
    """Seconds of one run."""

    @property
    def seconds(self) -> float:
        """The lower quartile: noise of a shared machine only adds time, and the least may be luck."""
        return sorted(self.samples)[len(self.samples) // 4]

    @property
    def tensors(self) -> int:
        """How many go in and out."""
        return len(self.model.inputs) + len(self.model.outputs)

    @property
    def nbytes(self) -> int:
        """Bytes of what goes in and out."""
        return sum(self.model.operands[operand].type.nbytes for operand in (*self.model.inputs, *self.model.outputs))


class ProgramTimer:
    """Programs on one device. A context manager: it closes what it made.

    Args:
        name: the device's.
        capability: the device's.
        context: where programs are compiled; it stays open.
        stopwatch: times them.
    """

    def __init__(self, name: str, capability: Capability, context: Context, stopwatch: Stopwatch) -> None:
        self._capability = capability
        self._context = context
        self._stopwatch, self._clock = stopwatch, stopwatch.clock
        self._made: list[Program | Execution] = []
        self._programs: list[ProgramTiming] = []
        is_serial = capability.threading is Threading.SERIAL
        self._lock: AbstractContextManager[object] = device_lock(name) if is_serial else nullcontext()

    def __enter__(self) -> ProgramTimer:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close every execution, then every program."""
        self.clear()

    def add(self, model: Model, *, is_standalone: bool = False) -> ProgramTiming | str:
        """Compile a model and run it twice; its first run does not count. Return why it cannot be timed, if so.

        Args:
            model: what to compile.
            is_standalone: it is all that runs, see `Context.compile_whole_graph`; else a segment beside others.
        """
        sent = self._form(model)
        verdict = all_of(ask_supported(self._context, sent, len(model.operations)))
        verdict = ask_admission(self._context, sent).verdict if verdict else verdict
        if not verdict:
            return str(verdict)
        try:
            timed = self._compiled(model, sent, is_standalone)
        except Exception as error:  # noqa: BLE001  a driver may raise anything; what cannot be timed is left out
            return f"it failed: {describe(error)}"
        if timed is None:
            return f"one run takes longer than {_LONGEST_SECONDS} seconds"
        self._programs.append(timed)
        return timed

    def drop(self, timed: ProgramTiming) -> None:
        """Time a program no more."""
        self._programs.remove(timed)

    def clear(self) -> None:
        """Close what was made; what was timed stays known."""
        resources = self._made.copy()
        self._made.clear()
        self._programs.clear()
        close_all(reversed(resources))

    def run(self, rounds: int, budget_seconds: float, advance: Callable[[], None], *, cold: bool = False) -> None:
        """Time every program once a round, in turn, so that what disturbs the machine disturbs all alike.

        Every round has an order of its own: who comes after whom decides what is found. A program takes a turn of
        runs, see `Stopwatch`. If `cold`, it runs once, where a segment stands: after another program, and work of the
        host that takes the caches. Alone, over and over, it finds caches full and threads awake, and a small one takes
        a third of the time.
        """
        started, chance = self._clock(), random.Random(0)
        for round_index in range(rounds):
            if round_index >= _LEAST_ROUNDS and self._clock() - started > budget_seconds:
                return
            for timed in chance.sample(self._programs, len(self._programs)):
                if cold:
                    _elsewhere()
                timed.samples.append(self._sample(timed) if cold else self._stopwatch.turn(partial(self._once, timed)))
            advance()

    def processors(self) -> float:
        """Return how many of the host's processors are in use while the program computes that takes longest."""
        timed = max(self._programs, key=lambda program: program.seconds)
        start_busy, started, passed = self._stopwatch.busy(), self._clock(), 0.0
        while passed < _LOOKED_AT_SECONDS:
            self._once(timed)
            elapsed = self._clock() - started
            if elapsed <= passed:  # a clock that stands still
                return 0.0
            passed = elapsed
        return (self._stopwatch.busy() - start_busy) / passed

    def _form(self, model: Model) -> object:
        if self._capability.form is ModelForm.IR:
            return model
        from nnadapter.costs.probes import onnx_form

        return onnx_form(model)

    def _compiled(self, model: Model, sent: object, is_standalone: bool) -> ProgramTiming | None:
        compile_ = self._context.compile_whole_graph if is_standalone else self._context.compile
        with not_counting(pools_held()):  # it has threads, however many sessions and programs live beside
            program = checked_program(compile_(sent))
        self._made.append(program)
        execution = create_execution(program)
        self._made.append(execution)
        generator = np.random.default_rng(0)
        types = [model.operands[operand].type for operand in model.inputs]
        numbers = [generator.standard_normal(type_.dimensions, np.float32) for type_ in types]
        inputs = [
            read_only(array.astype(type_.dtype.array_type, copy=False))
            for array, type_ in zip(numbers, types, strict=True)
        ]
        outputs = [model.operands[operand] for operand in model.outputs]
        expected = [(operand.type.dimensions, operand.type.dtype.array_type) for operand in outputs]
        timed = ProgramTiming(model, execution, inputs, [operand.name for operand in outputs], expected)
        self._sample(timed)
        return timed if self._sample(timed) <= _LONGEST_SECONDS else None

    def _sample(self, timed: ProgramTiming) -> float:
        """The seconds of one run, with what a run of a plan does to guard it."""
        started = self._clock()
        self._once(timed)
        return self._clock() - started

    def _once(self, timed: ProgramTiming) -> None:
        with self._lock:
            results = timed.execution.compute([read_only(array) for array in timed.inputs])
            check_results(list(results), timed.outputs, timed.expected)


_SWEPT = np.ones(1 << 20, np.float32)


def _elsewhere() -> None:
    """Work of the host between two runs: a pass over 4 MiB.

    No product of matrices: threads of BLAS look for more work for 100 ms, and take a processor from what is timed.
    """
    np.negative(_SWEPT, out=_SWEPT)


_ROUNDS = 20
_LEAST_SHARE = 0.05
_TRUSTED = 0.1
"""A relative difference up to which a measurement counts in full; beyond it, it counts the less the farther off."""


def fit(rows: Sequence[Sequence[float]], seconds: Sequence[float], least: Sequence[float] | None = None) -> Numbers:
    """Return coefficients, none negative, by which `rows` give `seconds`: least squares of relative differences.

    1. Relative, because a size that takes a second must not decide what one of a microsecond takes.
    2. Where the best fit has a negative coefficient, the most negative one is left out and the rest fitted again.
    3. What is far off counts less, so that a measurement that was disturbed decides nothing.

    Args:
        rows: [measurements, quantities].
        seconds: [measurements].
        least: [measurements], what each is certain to: differences are relative to that at least.

    Source: Huber: Robust Estimation of a Location Parameter (1964), by iteratively reweighted least squares.
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
        if np.array_equal(trust, previous_trust):  # the next round would be this one again
            break
    return coefficients


def fit_line(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], least: Sequence[float] | None = None
) -> Numbers:
    """Return a, b and c of a `Line`, none negative, by which work gives seconds; see `fit` for what counts.

    The length of two sides at right angles is each side times its share in it; with the shares of the round before,
    what is left is a sum.

    Args:
        rows: [measurements, 3], operations, FLOPs and bytes of each, the operations of one being alike.
        seconds: [measurements].
        least: see `fit`.
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
        # A side that was left out gets a way back in.
        shares = np.clip((shares + fitted_shares) / 2, _LEAST_SHARE, 1.0)
    return coefficients


def line_seconds(rows: Sequence[Sequence[float]], coefficients: Numbers) -> Numbers:
    """Return what a, b and c of a `Line` say of `rows`, see `fit_line` [measurements]."""
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
    """The median of |fitted - measured| / measured; 0 where nothing took time."""
    times = np.asarray(seconds, dtype=np.float64)
    positive = times > 0
    if not positive.any():
        return 0.0
    return float(np.median(np.abs(fitted - times)[positive] / times[positive]))


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
        seconds = [max(0.0, pair.further_seconds - _seconds_of_other_kinds(pair, lines)) for pair in kind_pairs]
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
    """The mean of how far off logarithms are; what is far off counts as 1."""
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


def _seconds_of_other_kinds(pair: Pair, lines: Lines) -> float:
    """What the operations of other kinds in the further links take, as far as that is known."""
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
    """Seconds, as `nnadapter.costs.calibration.Calibration` has them."""

    segment: float
    """Of a launch where a segment stands, between others."""
    sole_segment: float
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
    segment, tensor, byte = map(float, fit(rows, _unexplained_seconds(segments, lines), _least(segments)))
    launches = Launches(segment=segment, sole_segment=segment, tensor=tensor, byte=byte)
    residuals = [
        max(0.0, seconds - launches.crossing(timed) * crosses)
        for timed, seconds in zip(standalone_programs, _unexplained_seconds(standalone_programs, lines), strict=True)
    ]
    standalone_seconds = float(fit([(1.0,)] * len(residuals), residuals, _least(standalone_programs))[0])
    return Launches(segment=max(segment, standalone_seconds), sole_segment=standalone_seconds, tensor=tensor, byte=byte)


def _unexplained_seconds(programs: Sequence[ProgramTiming], lines: Lines) -> list[float]:
    return [max(0.0, timed.seconds - work_seconds(lines, timed.model)) for timed in programs]


def _least(programs: Sequence[ProgramTiming]) -> list[float]:
    return [NOISE * timed.seconds for timed in programs]


_SLACK = 3.0
"""How far a factor may be from 1, beside how far a network may be off, relatively."""
_MOST = 4.0
"""A factor, at most; and one over it at least."""
_FEWEST = 6
"""Networks that tell something; of fewer ones lines stay as they are."""


@dataclass(frozen=True, slots=True)
class NetworkScaledCosts:
    """Lines and launches as networks have them."""

    lines: Lines
    launches: Launches
    predicted: Mapping[str, float]
    """Seconds of each network, by factors that the others alone gave: how far new ones will be off."""


def scale_to_networks(lines: Lines, launches: Launches, networks: Mapping[str, ProgramTiming]) -> NetworkScaledCosts:
    """Return lines and launches scaled by what networks took, all of which were everything that ran.

    1. Of each network it is known what each kind takes by its line, and what the launch does.
    2. Factors of kinds and of the launch, none negative, give the seconds of networks: least squares of relative
       differences, in which what is far off counts less (`fit`), and a factor costs what it is away from 1.
    3. The same without each network in turn says how far off that one would have been.
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
        predicted[name] = _sum(row, without)
    return NetworkScaledCosts(scaled, replace(launches, sole_segment=launches.sole_segment * factors[-1]), predicted)


def _network_row(lines: Lines, launches: Launches, kinds: Sequence[Kind], timed: ProgramTiming) -> list[float]:
    """Seconds of each kind, and of the launch and what crosses."""
    by_kind = seconds_by_kind(lines, timed.model)
    return [*(by_kind.get(kind, 0.0) for kind in kinds), launches.sole_segment + launches.crossing(timed)]


def _factors(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """A factor for each column."""
    ones = [[float(row == column) for column in range(len(rows[0]))] for row in range(len(rows[0]))]
    least = [0.0] * len(rows) + [_SLACK] * len(ones)
    factors = fit([*rows, *ones], [*seconds, *[1.0] * len(ones)], least)
    return [min(max(float(factor), 1 / _MOST), _MOST) for factor in factors]


def _sum(row: Sequence[float], factors: Sequence[float]) -> float:
    return sum(seconds * factor for seconds, factor in zip(row, factors, strict=True))


def _scaled(line: Line, factor: float) -> Line:
    return replace_line(
        line,
        seconds=line.seconds * factor,
        seconds_per_flop=line.seconds_per_flop * factor,
        seconds_per_byte=line.seconds_per_byte * factor,
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
       behind those that they are fused with (`classes.py`).
    4. What is left of programs of little work is the launch, and the transfers by number and bytes of tensors: of
       segments, which stand between others, and of a program that is all that runs.
    5. Small networks of mixed operations scale the kinds, and tell how far off what these say together is. While
       one runs, the host's processors in use are counted: who needs them shares them with others.

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
        else _uncontended_processors(measurements.processors, available_processors)
    )
    return _calibration(selected, opened, measurements, processors, crowded=tells and is_crowded(*loads))


def _uncontended_processors(processors: float, available_processors: float) -> float:
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
    unmeasured_classes: Mapping[OperationClass, str]
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
    """Time every probe that the device can run; say why there is none of a class; then networks and segments.

    A few at a time, since each may have threads and memory of its own. Each batch has probes of several classes.
    Networks are held against each other, so all take turns, as far as threads allow: what disturbs the machine for a
    while disturbs them alike.
    """
    every, mixed = probes(), list(networks().items())
    batches, network_batches = _batches(len(every), _AT_ONCE), _batches(len(mixed), most_pools())
    count = len(batches) + len(network_batches)
    share, progress = budget_seconds / (count + 1), _RoundProgress(advance, count)
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
class _RoundProgress:
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
        if kind.producer_class is not None:
            riding.setdefault(kind.producer_class, {})[kind.operation_class] = line
    return riding
