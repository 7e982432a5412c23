"""Policy `measured`: candidates are compiled and timed in turns with real input; choices are stored for later sessions.

Noise only adds time, so a low quantile of a candidate's turns counts. The simplest candidate wins unless another is
faster beyond noise.

1. All candidates take turns until the winner is clear (`costs/calibrator.py`).
2. The winner and the fastest other candidate repeat this. If both contests agree and the machine was otherwise idle,
   the choice is stored on disk.
3. Later runs are checked against the measured time (`compiled.py`). On contradiction the next run measures again.

If shapes vary, the winner gets a dynamic plan for similar sizes. If that plan is too slow, each set of shapes has its
own contest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import cpu_count
from random import Random
from typing import TYPE_CHECKING, Any

from nnadapter.costs import calibration
from nnadapter.costs.calibrator import Stopwatch
from nnadapter.drivers.onnxruntime.program import CpuProgram, most_pools, not_counting, pools_held
from nnadapter.engine.compilation import Compiler
from nnadapter.engine.compiled import Compiled, Promise, TimedPlacement, Watch, typical
from nnadapter.engine.dynamic_plans import FixedSizesError
from nnadapter.engine.execution_pool import driver_program
from nnadapter.errors import DriverError, NotDelegatedError, StoredFileError
from nnadapter.onnx.signature import Shapes
from nnadapter.options import fallback_text
from nnadapter.planning.judgment import Judgment, placed_as
from nnadapter.planning.planner import Planner
from nnadapter.planning.setting import Setting
from nnadapter.planning.settling import place
from nnadapter.process.packages import own_version
from nnadapter.process.processors import Load, is_crowded, machine_description, usable
from nnadapter.process.resources import close_all
from nnadapter.records import dataclass, replace
from partition.by_cost.latency import Candidate
from partition.by_cost.pricing import OriginKind
from partition.plan import Plan

if TYPE_CHECKING:
    import onnxruntime


EARLIER = "measured in an earlier session"


@dataclass(frozen=True, eq=False, kw_only=True)
class Recalled:
    """Stored choice of an earlier session: `judgment` demands the measured placement."""

    judgment: Judgment
    timed: tuple[TimedPlacement, ...]


class PastChoices:
    """Storage of measured choices for the devices and options of one session."""

    def __init__(self, setting: Setting, session_options: onnxruntime.SessionOptions | None = None) -> None:
        self._setting, self._session_options = setting, session_options

    def recall(self, judgment: Judgment) -> tuple[Recalled | None, str]:
        """Return the stored choice for the model of `judgment`, and a note if a stored file is not used."""
        past, note = calibration.recall(self.key(judgment))
        if past is None:
            return None, note
        graph, verdicts = judgment.model.graph, judgment.support.verdicts
        labels = [past.placement.get(graph.nodes[nodes[0]].name, "") for nodes in graph.atoms]
        fits = all(verdicts.get(label, {atom: None})[atom] for atom, label in enumerate(labels))
        if not fits:
            return None, "the stored choice does not fit this model any more and is ignored"
        return Recalled(
            judgment=placed_as(judgment, labels),
            timed=tuple(
                TimedPlacement(origin=candidate.origin, predicted=None, measured=candidate.seconds)
                for candidate in past.timed
            ),
        ), note

    def keep(self, judgment: Judgment, plan: Plan, timed: Sequence[TimedPlacement]) -> str:
        """Store the placement of the fastest plan; return the reason if that failed."""
        graph = plan.graph
        placement = {node.name: plan.placement[atom] for node, atom in zip(graph.nodes, graph.atom_of, strict=True)}
        measured = tuple(
            calibration.MeasuredCandidate(origin=timed_placement.origin, seconds=timed_placement.measured)
            for timed_placement in timed
        )
        try:
            calibration.remember(self.key(judgment), calibration.MeasuredChoice(placement=placement, timed=measured))
        except StoredFileError as error:
            return str(error)
        return ""

    def forget(self, judgment: Judgment) -> None:
        calibration.forget(self.key(judgment))

    def key(self, judgment: Judgment) -> str:
        devices = [
            calibration.MeasuredDevice(
                name=device.name, version=calibration.driver_version(device.name), options=device.options
            )
            for device in self._setting.devices
        ]
        constraints = self._setting.constraints
        named = [device.name for device in self._setting.devices if device.named]
        isolated = [device.name for device in self._setting.devices if device.is_isolated]
        fallback = fallback_text(constraints.fallback)
        settings = f"{constraints.rules!r} {constraints.plan_file!r} {fallback} {named} isolated {isolated}"
        machine = f"{machine_description()}, threads {self._threads()}"
        return calibration.choice_key(
            judgment.model.prepared.digest, devices, judgment.model.shapes, own_version(), settings, machine
        )

    def _threads(self) -> tuple[int, int]:
        options = self._session_options
        return (0, 0) if options is None else (options.intra_op_num_threads, options.inter_op_num_threads)


Samples = Sequence[Sequence[float]]
"""Seconds of the turns of every candidate; excluded candidates have fewer."""

MARGIN = 0.02
"""Share by which a candidate must be faster than a simpler one."""
_FEWEST, _MOST_TURNS = 5, 15
_WIDE = (10.0, 4.0, 1.5, 1.2)
"""Factors by which a candidate must be slower in 1, 2, 3 or 4 turns to be excluded."""
_PATIENCE_SECONDS = 6.0
"""Time after which every candidate gets only `_BARELY` turns."""
_BARELY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Winner of a contest of candidates, and typical seconds of each."""

    winner: int
    seconds: tuple[float, ...]
    is_sure: bool
    """True if no other candidate may be faster than the winner by twice `MARGIN`."""


def is_slower(turns: Sequence[float], other_turns: Sequence[float], by: float = 0.0) -> bool:
    """Return True if a candidate is slower than another by more than the share `by`, beyond noise.

    It must be slower in all of 5 turns, all but one of 7, or all but two of 11, which happens by chance in 2 to 6 % of
    cases. In fewer turns, it must always be slower by a wide margin.
    """
    pairs = list(zip(turns, other_turns, strict=False))
    if len(pairs) < _FEWEST:
        return bool(pairs) and all(mine > _WIDE[len(pairs) - 1] * other for mine, other in pairs)
    against = sum(mine <= (1 + by) * other for mine, other in pairs)
    return against <= (len(pairs) - 3) // 4


def still_in_question(samples: Samples) -> list[int]:
    """Return the candidates that `is_slower` does not find slower than the fastest by `MARGIN`."""
    fastest = samples[_fastest(samples)]
    return [number for number, turns in enumerate(samples) if not is_slower(turns, fastest, MARGIN)]


def decided(samples: Samples, simplest: Sequence[int]) -> Outcome:
    """Return the winner: the first candidate of `simplest` that is within `MARGIN` of the fastest.

    The outcome is sure unless another candidate may be faster than the winner by twice `MARGIN`; see `is_slower`.
    """
    seconds = tuple(typical(turns) for turns in samples)
    enough = (1 + MARGIN) * min(seconds)
    winner = next(number for number in simplest if seconds[number] <= enough)
    losing_turns = [turns for number, turns in enumerate(samples) if number != winner]
    is_sure = all(is_slower(turns, samples[winner], -2 * MARGIN) for turns in losing_turns)
    return Outcome(winner=winner, seconds=seconds, is_sure=is_sure)


def contest(
    candidates: Sequence[Callable[[], float]], simplest: Sequence[int], clock: Callable[[], float]
) -> tuple[Outcome, list[list[float]]]:
    """Time candidates in turns until the winner is clear or more turns do not help.

    Returns the outcome and the seconds of all turns. Each round runs all candidates in random order, with a constant
    seed. `simplest` has candidates' indices, the simplest first.
    """
    samples: list[list[float]] = [[] for _ in candidates]
    contenders, chance, started = list(range(len(candidates))), Random(0), clock()
    for turns in range(1, _MOST_TURNS + 1):
        for number in chance.sample(contenders, len(contenders)):
            samples[number].append(candidates[number]())
        undecided = still_in_question(samples)
        contenders = [number for number in contenders if number in undecided]
        is_late = turns >= _BARELY and clock() - started > _PATIENCE_SECONDS
        if len(contenders) == 1 or is_late or (turns >= _FEWEST and decided(samples, simplest).is_sure):
            break
    return decided(samples, simplest), samples


def twice(
    turns: Sequence[Callable[[], float]], simplest: Sequence[int], clock: Callable[[], float]
) -> tuple[Outcome, str]:
    """Hold two contests; return the outcome, and a reason to doubt the outcome, if any.

    The winner and the fastest other candidate hold the second contest. Their turns in both contests count.
    """
    first, samples = contest(turns, simplest, clock)
    rivals = set(range(len(turns))) - {first.winner}
    pair = (first.winner, min(rivals, key=first.seconds.__getitem__))
    ranks = sorted((0, 1), key=lambda number: simplest.index(pair[number]))
    second, second_samples = contest([turns[number] for number in pair], ranks, clock)
    seconds = list(first.seconds)
    for number, more in zip(pair, second_samples, strict=True):
        seconds[number] = typical([*samples[number], *more])
    if second.winner == 0:
        doubt = "" if first.is_sure and second.is_sure else "measured times differ by less than their noise"
        return Outcome(winner=pair[0], seconds=tuple(seconds), is_sure=not doubt), doubt
    joined = decided([[*samples[number], *more] for number, more in zip(pair, second_samples, strict=True)], ranks)
    winner = pair[joined.winner]
    return Outcome(winner=winner, seconds=tuple(seconds), is_sure=False), "two measurements disagree"


def _fastest(samples: Samples) -> int:
    seconds = [typical(turns) for turns in samples]
    return seconds.index(min(seconds))


MOST_AGAIN = 2
"""Maximum number of repeated measurements for one set of input shapes."""
_MOST_CANDIDATES = 6
_TURNS_OPEN = 3
_LOST = 1.1
"""Factor by which a dynamic plan must be slower than another placement to be rejected."""
_FAR = 3.0
"""Factor by which all other candidates must be slower, so that a busy machine casts no doubt on the winner."""


class Measurer:
    """Choice of the placement by measurement, for one session."""

    def __init__(
        self,
        compiler: Compiler,
        session_options: onnxruntime.SessionOptions | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self._memory, self._compiler = PastChoices(compiler.setting, session_options), compiler
        self._stopwatch = stopwatch or Stopwatch()
        self._broken: dict[str, list[str]] = {}

    def choose(self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any], *, made_up: bool) -> Compiled:
        """Return the compiled plan of the fastest placement for a judged model, stored or newly measured.

        `feed` are the inputs of the measured runs; `made_up` is True if they are random.
        """
        broken = self._broken.get(self._memory.key(judgment), [])
        past, note = (None, "") if broken else self._memory.recall(judgment)
        if past is not None:
            compiled = self._compiler.compile(planner, past.judgment)
            return replace(compiled, timed=past.timed, chosen=EARLIER, watch=_watch(past.timed))
        if not judgment.model.graph.atoms:
            return self._compiler.compile(planner, judgment)
        compiled, timed, doubt = self._measured(planner, judgment, feed)
        how = f"measured here with {'random input' if made_up else 'the input of the first run'}"
        saved = doubt or self._memory.keep(judgment, compiled.partitioning.plan, timed)
        watch = _watch(timed) if len(broken) < MOST_AGAIN else None
        return replace(compiled, timed=timed, chosen="; ".join(filter(None, (how, *broken, note, saved))), watch=watch)

    def check_dynamic(self, compiled: Compiled, fastest: Compiled, shapes: Shapes, feed: Mapping[str, Any]) -> Compiled:
        """Check the dynamic plan `compiled` for the placement of `fastest`; return it with the times of `fastest`.

        Raises FixedSizesError if `compiled` fails, or is slower than the next best candidate. Later runs are not
        compared with these times, since other sizes were not measured.
        """
        dynamic = compiled.dynamic
        if len(fastest.timed) > 1 and dynamic is not None and not dynamic.specializable:
            sizes = None if dynamic.sizes is None else dynamic.sizes.sizes(shapes)
            rival, run = (
                min(timed_placement.measured for timed_placement in fastest.timed[1:]),
                _runner(compiled, feed, sizes),
            )
            try:
                seconds = min(self._stopwatch.turn(run) for _ in range(_TURNS_OPEN))
            except (DriverError, NotDelegatedError) as error:
                compiled.close()
                raise FixedSizesError(f"with dynamic shapes, the fastest placement fails: {error}") from error
            except BaseException:
                compiled.close()
                raise
            if seconds > _LOST * rival:
                compiled.close()
                raise FixedSizesError(
                    f"the fastest placement takes {_milliseconds(seconds)} with dynamic shapes, another one "
                    f"{_milliseconds(rival)} with static ones"
                )
        how = f"{fastest.chosen}; other sizes are not measured" if fastest.chosen else ""
        return replace(compiled, timed=fastest.timed, chosen=how)

    def contradicted(self, compiled: Compiled, watch: Watch) -> None:
        judgment, took, promised = compiled.partitioning.judgment, watch.typical_seconds, watch.promise.seconds
        reason = f"again, since runs took {_milliseconds(took)} instead of the measured {_milliseconds(promised)}"
        self._broken.setdefault(self._memory.key(judgment), []).append(reason)
        self._memory.forget(judgment)

    def _measured(
        self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any]
    ) -> tuple[Compiled, tuple[TimedPlacement, ...], str]:
        trials: list[tuple[Candidate, Compiled]] = []
        pools = pools_held()
        try:
            self._try(planner, judgment, feed, trials, pools)
            outcome, doubt = self._run_turns([compiled for _, compiled in trials], feed, pools)
        except BaseException:
            close_all(compiled for _, compiled in trials)
            raise
        seconds = outcome.seconds
        losers = sorted(set(range(len(trials))) - {outcome.winner}, key=seconds.__getitem__)
        timed = tuple(
            TimedPlacement(origin=trials[number][0].origin, predicted=trials[number][0].cost, measured=seconds[number])
            for number in (outcome.winner, *losers)
        )
        close_all(trials[number][1] for number in losers)
        return trials[outcome.winner][1], timed, doubt

    def _run_turns(self, plans: Sequence[Compiled], feed: Mapping[str, Any], pools: int) -> tuple[Outcome, str]:
        """Time compiled candidates; return the outcome, and the reason against storing it, if any.

        `pools` is the number of thread pools of other sessions.
        """
        if len(plans) == 1:
            seconds = self._stopwatch.turn(_runner(plans[0], feed))
            return Outcome(winner=0, seconds=(seconds,), is_sure=True), ""
        load_before = Load()
        turns = [partial(self._stopwatch.turn, _runner(compiled, feed)) for compiled in plans]
        outcome, doubt = twice(turns, _simplest(plans), self._stopwatch.clock)
        if not doubt and is_crowded(load_before, Load(), cpu_count() or 1, usable()):
            second = sorted(outcome.seconds)[1]
            crowd = "other programs used the processors meanwhile"
            doubt = crowd if second < _FAR * outcome.seconds[outcome.winner] else ""
        if not doubt and pools + max(map(_pools_wanted, plans)) > most_pools():
            doubt = "other sessions of the process use the thread pools that steps on the CPU need"
        return outcome, f"not stored for later sessions, since {doubt}" if doubt else ""

    def _try(
        self,
        planner: Planner,
        judgment: Judgment,
        feed: Mapping[str, Any],
        trials: list[tuple[Candidate, Compiled]],
        pools: int,
    ) -> None:
        """Append to `trials` every candidate that compiles and runs without fallback, or one if all need fallback.

        Each candidate gets the thread pools that it would have alone. `pools`: see `_run_turns`.
        """
        failure: DriverError | NotDelegatedError | None = None
        fallen: list[tuple[Candidate, Compiled]] = []
        placements: set[tuple[str, ...]] = set()
        for candidate in self._candidates(judgment):
            try:
                with not_counting(pools_held() - pools):
                    compiled = self._compiler.compile(planner, placed_as(judgment, candidate.placement))
            except (DriverError, NotDelegatedError) as error:
                failure = error
                continue
            trials.append((candidate, compiled))
            if compiled.partitioning.plan.placement in placements:
                trials.pop()[1].close()
                continue
            try:
                _runner(compiled, feed)()
            except (DriverError, NotDelegatedError) as error:
                failure = error
                trials.pop()[1].close()
                continue
            if _fell_back(compiled):
                fallen.append(trials.pop())
            else:
                placements.add(compiled.partitioning.plan.placement)
        if not trials and fallen:
            trials.append(fallen.pop(0))
        close_all(compiled for _, compiled in fallen)
        if not trials and failure is not None:
            raise failure

    def _candidates(self, judgment: Judgment) -> list[Candidate]:
        """Return the placements to measure, the baselines first.

        Devices that the user did not name are used only if needed.
        """
        setting = self._compiler.setting
        candidates = place(judgment, setting).candidates()
        if setting.constraints.fallback_at("load") == "forbid":
            named = {device.name for device in setting.devices if device.named}
            candidates = (
                tuple(candidate for candidate in candidates if named.issuperset(candidate.placement)) or candidates
            )
        return sorted(candidates, key=_rank)[:_MOST_CANDIDATES]


_BASELINES = (OriginKind.ALL_ON, OriginKind.EVERYTHING_SUPPORTED)


def _rank(candidate: Candidate) -> int:
    kind = candidate.origin.kind
    return _BASELINES.index(kind) if kind in _BASELINES else len(_BASELINES)


def _simplest(plans: Sequence[Compiled]) -> list[int]:
    def rank(number: int) -> tuple[int, bool]:
        steps = plans[number].plan.steps
        return len(steps), any(bound.is_checked for bound in steps)

    return sorted(range(len(plans)), key=rank)


def _pools_wanted(compiled: Compiled) -> int:
    programs = {driver_program(bound.pool.program) for bound in compiled.plan.steps}
    return min(sum(isinstance(program, CpuProgram) and program.wants_pool for program in programs), most_pools())


def _watch(timed: Sequence[TimedPlacement]) -> Watch | None:
    if len(timed) < 2:
        return None
    return Watch(
        Promise(seconds=timed[0].measured, rival_seconds=min(timed_placement.measured for timed_placement in timed[1:]))
    )


def _runner(compiled: Compiled, feed: Mapping[str, Any], sizes: Sequence[Any] | None = None) -> Callable[[], object]:
    names = tuple(compiled.partitioning.plan.graph.outputs)
    return lambda: compiled.plan.run(feed, names, sizes=sizes)


def _fell_back(compiled: Compiled) -> bool:
    return bool(compiled.notes or compiled.step_failures)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
