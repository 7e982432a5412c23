"""Policy `measured`: candidates compiled and timed in turns with real input, and choices of earlier sessions.

Which of several candidates is the fastest, by turns that they took one after the other, and how sure that is.

All here is a function of samples. Noise of a shared machine only adds time, and lasts: so of a candidate's turns a low
one counts, but not the least, which may be luck; and two candidates are compared turn by turn, since what disturbs the
machine disturbs neighbors alike. The simplest candidate is taken unless another one is faster by more than noise.

1. All take turns until it is clear which to take (`measuring.py`, `costs/calibrator.py`).
2. That one and the fastest other one do so once more. Where both times the same is taken, and both times beyond noise,
   and others left the machine alone meanwhile, it is stored on disk
   by the model's contents, devices with versions and options, shapes, rules, machine and threads.
3. Runs are held to what was measured (`compiled.py`). Where they contradict it, it is forgotten, and the next run
   measures again, `MOST_AGAIN` times at most.

Where shapes vary, what was taken at the first of them is compiled with its sizes left open, for sizes like those,
unless that loses what was gained: then each set of shapes has a contest of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import cpu_count
from random import Random
from typing import TYPE_CHECKING, Any

from nnadapter.costs.calibration import (
    MeasuredCandidate,
    MeasuredChoice,
    MeasuredDevice,
    choice_key,
    driver_version,
    forget,
    recall,
    remember,
)
from nnadapter.costs.calibrator import Stopwatch
from nnadapter.drivers.onnxruntime.program import CpuProgram, most_pools, not_counting, pools_held
from nnadapter.engine.compilation import Compiler
from nnadapter.engine.compiled import Compiled, Promise, TimedPlacement, Watch, typical
from nnadapter.engine.dynamic_plans import FixedSizesError
from nnadapter.engine.tracing import driver_program
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
from partition.by_cost.latency import Candidate
from partition.by_cost.pricing import OriginKind
from partition.plan import Plan

if TYPE_CHECKING:
    import onnxruntime


EARLIER = "measured in an earlier session"
"""How a remembered choice came about."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Recalled:
    """What was chosen earlier."""

    judgment: Judgment
    """Placed as it was then."""
    timed: tuple[TimedPlacement, ...]
    """The one taken first."""


class PastChoices:
    """What was measured in one setting, here and in earlier sessions.

    Args:
        setting: with its devices.
        session_options: of ONNX Runtime: how many threads it may use; None for as many as it takes.
    """

    def __init__(self, setting: Setting, session_options: onnxruntime.SessionOptions | None = None) -> None:
        self._setting, self._session_options = setting, session_options

    def recall(self, judgment: Judgment) -> tuple[Recalled | None, str]:
        """Return what was chosen for these verdicts and shapes, and a note: why a file that is there is not used."""
        known, note = recall(self.key(judgment))
        if known is None:
            return None, note
        graph, verdicts = judgment.model.graph, judgment.support.verdicts
        labels = [known.placement.get(graph.nodes[nodes[0]].name, "") for nodes in graph.atoms]
        fits = all(verdicts.get(label, {atom: None})[atom] for atom, label in enumerate(labels))
        if not fits:
            return None, "what is remembered of this model does not fit it any more, and counts as not measured"
        return Recalled(
            judgment=placed_as(judgment, labels),
            timed=tuple(
                TimedPlacement(origin=candidate.origin, predicted=None, measured=candidate.seconds)
                for candidate in known.timed
            ),
        ), note

    def keep(self, judgment: Judgment, plan: Plan, timed: Sequence[TimedPlacement]) -> str:
        """Keep the plan that was taken for the next time; return why that failed, empty where it did not."""
        graph = plan.graph
        placement = {node.name: plan.placement[atom] for node, atom in zip(graph.nodes, graph.atom_of, strict=True)}
        measured = tuple(
            MeasuredCandidate(origin=timed_placement.origin, seconds=timed_placement.measured)
            for timed_placement in timed
        )
        try:
            remember(self.key(judgment), MeasuredChoice(placement=placement, timed=measured))
        except StoredFileError as error:
            return str(error)
        return ""

    def forget(self, judgment: Judgment) -> None:
        """Keep nothing of these verdicts and shapes, as far as the file can be deleted."""
        forget(self.key(judgment))

    def key(self, judgment: Judgment) -> str:
        """Return what a choice is kept by."""
        devices = [
            MeasuredDevice(name=device.name, version=driver_version(device.name), options=device.options)
            for device in self._setting.devices
        ]
        constraints = self._setting.constraints
        named = [device.name for device in self._setting.devices if device.named]
        isolated = [device.name for device in self._setting.devices if device.is_isolated]
        fallback = fallback_text(constraints.fallback)
        said = f"{constraints.rules!r} {constraints.plan_file!r} {fallback} {named} isolated {isolated}"
        machine = f"{machine_description()}, threads {self._threads()}"
        return choice_key(judgment.model.prepared.digest, devices, judgment.model.shapes, own_version(), said, machine)

    def _threads(self) -> tuple[int, int]:
        given = self._session_options
        return (0, 0) if given is None else (given.intra_op_num_threads, given.inter_op_num_threads)


Samples = Sequence[Sequence[float]]
"""Seconds of every candidate's turns, in the order in which they took turns; some take fewer than others."""

MARGIN = 0.02
"""A candidate that is faster by no more than this share is no reason for something less simple."""
_FEWEST, _MOST_TURNS = 5, 15
"""Turns of those that are still in question."""
_WIDE = (10.0, 4.0, 1.5, 1.2)
"""Times by which one has to be slower in every turn, where they took 1, 2, 3 or 4."""
_PATIENCE_SECONDS = 6.0
"""After so long nobody gets more turns than tell anything."""
_BARELY = 3
"""Such turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out of a contest."""

    winner: int
    """Position of the candidate to take."""
    seconds: tuple[float, ...]
    """Of each candidate, see `typical`."""
    is_sure: bool
    """The candidate is the one to take beyond noise; or others are as good, and that is beyond noise."""


def is_slower(turns: Sequence[float], others: Sequence[float], by: float = 0.0) -> bool:
    """Return whether one is slower than the other beyond noise: by more than a share `by`, in nearly every turn.

    Of 5 turns in all, of 7 in all but one, of 11 in all but two: by chance that comes in 2 to 6 of 100 cases. Fewer
    turns tell it only where all of them say so by a wide margin, whatever `by` is.

    Args:
        turns: of the one.
        others: of the other, who took turns from the same round on; turns that only one of them took tell nothing.
        by: a share of the other's seconds, above -1.
    """
    pairs = list(zip(turns, others, strict=False))
    if len(pairs) < _FEWEST:
        return bool(pairs) and all(mine > _WIDE[len(pairs) - 1] * other for mine, other in pairs)
    against = sum(mine <= (1 + by) * other for mine, other in pairs)
    return against <= (len(pairs) - 3) // 4


def still_in_question(samples: Samples) -> list[int]:
    """Return who may be the fastest as far as is known: who is not slower than it by `MARGIN`, beyond noise."""
    fastest = samples[_fastest(samples)]
    return [number for number, turns in enumerate(samples) if not is_slower(turns, fastest, MARGIN)]


def decided(samples: Samples, simplest: Sequence[int]) -> Outcome:
    """Return who is to be taken.

    1. The fastest is who has the least `typical` seconds.
    2. Whoever has no more than `MARGIN` above that is as good; of these the simplest is taken.
    3. That is sure if beyond noise nobody is faster than who is taken by more than twice the margin.

    Args:
        samples: at least one turn of each.
        simplest: positions, the simplest first.
    """
    seconds = tuple(typical(turns) for turns in samples)
    enough = (1 + MARGIN) * min(seconds)
    winner = next(number for number in simplest if seconds[number] <= enough)
    others = [turns for number, turns in enumerate(samples) if number != winner]
    sure = all(is_slower(turns, samples[winner], -2 * MARGIN) for turns in others)
    return Outcome(winner=winner, seconds=seconds, is_sure=sure)


def contest(
    candidates: Sequence[Callable[[], float]], simplest: Sequence[int], clock: Callable[[], float]
) -> tuple[Outcome, list[list[float]]]:
    """Let candidates take turns until it is clear who is to be taken, or no more turns help.

    Everyone takes a turn in each round, in an order drawn by chance, which is the same in every contest.

    Args:
        candidates: each takes a turn and returns its seconds.
        simplest: positions, the simplest first.
        clock: gives seconds that pass.

    Returns:
        What came out, and the samples.
    """
    samples: list[list[float]] = [[] for _ in candidates]
    left, chance, started = list(range(len(candidates))), Random(0), clock()
    for turns in range(1, _MOST_TURNS + 1):
        for number in chance.sample(left, len(left)):
            samples[number].append(candidates[number]())
        asked = still_in_question(samples)
        left = [number for number in left if number in asked]
        is_late = turns >= _BARELY and clock() - started > _PATIENCE_SECONDS
        if len(left) == 1 or is_late or (turns >= _FEWEST and decided(samples, simplest).is_sure):
            break
    return decided(samples, simplest), samples


def twice(
    turns: Sequence[Callable[[], float]], simplest: Sequence[int], clock: Callable[[], float]
) -> tuple[Outcome, str]:
    """Return which of several candidates to take, and why that is in doubt, in words; empty where it is not.

    After a contest of all, who is to be taken and the fastest other one hold a second one. All their turns count.

    Args:
        turns: each takes a turn of a candidate and returns its seconds; two at least.
        simplest: positions, the simplest first.
        clock: gives seconds that pass.
    """
    first, samples = contest(turns, simplest, clock)
    others = set(range(len(turns))) - {first.winner}
    pair = (first.winner, min(others, key=first.seconds.__getitem__))
    ranks = sorted((0, 1), key=lambda number: simplest.index(pair[number]))
    second, again = contest([turns[number] for number in pair], ranks, clock)
    seconds = list(first.seconds)
    for number, more in zip(pair, again, strict=True):
        seconds[number] = typical([*samples[number], *more])
    if second.winner == 0:
        doubt = "" if first.is_sure and second.is_sure else "what was measured differs too little, for its noise"
        return Outcome(winner=pair[0], seconds=tuple(seconds), is_sure=not doubt), doubt
    joined = decided([[*samples[number], *more] for number, more in zip(pair, again, strict=True)], ranks)
    winner = pair[joined.winner]
    return Outcome(winner=winner, seconds=tuple(seconds), is_sure=False), "two measurements disagree"


def _fastest(samples: Samples) -> int:
    seconds = [typical(turns) for turns in samples]
    return seconds.index(min(seconds))


MOST_AGAIN = 2
"""How often the runs of a session may make it measure again, for each set of input shapes."""
_MOST_CANDIDATES = 6
"""Candidates that are compiled and timed, baselines included."""
_TURNS_OPEN = 3
"""Turns of a plan whose sizes are left open; the fastest counts."""
_LOST = 1.1
"""Where it takes so many times what another placement took, its sizes are not left open."""
_FAR = 3.0
"""Where everyone else takes so many times what is taken, a busy machine is not why."""


class Measurer:
    """Chooses by measurement for one session."""

    def __init__(
        self,
        compiler: Compiler,
        session_options: onnxruntime.SessionOptions | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self._memory, self._compiler = PastChoices(compiler.setting, session_options), compiler
        self._stopwatch = stopwatch or Stopwatch()
        self._broken: dict[str, list[str]] = {}
        """What runs contradicted, in words, by what a choice is kept by."""

    def choose(self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any], *, made_up: bool) -> Compiled:
        """Return the fastest candidate for these shapes, remembered or measured now.

        Args:
            planner: settles.
            judgment: the verdicts.
            feed: input name -> array, to run the candidates with.
            made_up: the feed is random, not the person's own.

        Raises:
            NotDelegatedError: fallback is forbidden and would be needed.
            CompilationError: no candidate compiles.
        """
        broken = self._broken.get(self._memory.key(judgment), [])
        known, note = (None, "") if broken else self._memory.recall(judgment)
        if known is not None:
            compiled = self._compiler.compile(planner, known.judgment)
            return replace(compiled, timed=known.timed, chosen=EARLIER, watch=_watch(known.timed))
        if not judgment.model.graph.atoms:
            return self._compiler.compile(planner, judgment)
        compiled, timed, doubt = self._measured(planner, judgment, feed)
        how = f"measured here with {'random input' if made_up else 'the input of the first run'}"
        kept = doubt or self._memory.keep(judgment, compiled.partitioning.plan, timed)
        watch = _watch(timed) if len(broken) < MOST_AGAIN else None
        return replace(compiled, timed=timed, chosen="; ".join(filter(None, (how, *broken, note, kept))), watch=watch)

    def open_as(self, compiled: Compiled, fastest: Compiled, shapes: Shapes, feed: Mapping[str, Any]) -> Compiled:
        """Return the plan that was measured with its sizes left open, and say what it was chosen from.

        Nobody holds its runs to what was measured at other sizes.

        Args:
            compiled: it, with its sizes left open.
            fastest: it, as it was measured.
            shapes: at which that was.
            feed: of these shapes.

        Raises:
            FixedSizesError: so it fails, or takes longer than what lost against it.
        """
        opening = compiled.opening
        if len(fastest.timed) > 1 and opening is not None and not opening.fillable:
            sizes = None if opening.sizes is None else opening.sizes.sizes(shapes)
            rival, run = (
                min(timed_placement.measured for timed_placement in fastest.timed[1:]),
                _runner(compiled, feed, sizes),
            )
            try:
                seconds = min(self._stopwatch.turn(run) for _ in range(_TURNS_OPEN))
            except (DriverError, NotDelegatedError) as error:
                compiled.close()
                raise FixedSizesError(f"with its sizes left open, the fastest placement fails: {error}") from error
            except BaseException:
                compiled.close()
                raise
            if seconds > _LOST * rival:
                compiled.close()
                raise FixedSizesError(
                    f"the fastest placement takes {_milliseconds(seconds)} with its sizes left open, another one "
                    f"{_milliseconds(rival)} at fixed ones"
                )
        how = f"{fastest.chosen}; at other sizes nothing is measured" if fastest.chosen else ""
        return replace(compiled, timed=fastest.timed, chosen=how)

    def contradicted(self, compiled: Compiled, watch: Watch) -> None:
        """Forget what was measured of a plan, since its runs are not as that said."""
        judgment, took, said = compiled.partitioning.judgment, watch.taken, watch.promise.seconds
        why = f"again, since runs took {_milliseconds(took)} where {_milliseconds(said)} had been measured"
        self._broken.setdefault(self._memory.key(judgment), []).append(why)
        self._memory.forget(judgment)

    def _measured(
        self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any]
    ) -> tuple[Compiled, tuple[TimedPlacement, ...], str]:
        """The plan to take, all that were timed, and why it is not kept for other sessions, if so."""
        trials: list[tuple[Candidate, Compiled]] = []
        others = pools_held()
        try:
            self._try(planner, judgment, feed, trials, others)
            outcome, doubt = self._taken([compiled for _, compiled in trials], feed, others)
        except BaseException:
            close_all(compiled for _, compiled in trials)
            raise
        seconds = outcome.seconds
        rest = sorted(set(range(len(trials))) - {outcome.winner}, key=seconds.__getitem__)
        timed = tuple(
            TimedPlacement(origin=trials[number][0].origin, predicted=trials[number][0].cost, measured=seconds[number])
            for number in (outcome.winner, *rest)
        )
        close_all(trials[number][1] for number in rest)
        return trials[outcome.winner][1], timed, doubt

    def _taken(self, plans: Sequence[Compiled], feed: Mapping[str, Any], others: int) -> tuple[Outcome, str]:
        """Which plan to take, and why that is in doubt, if so: what two contests say.

        Args:
            plans: to choose from.
            feed: to run them with.
            others: thread pools that other sessions of the process have.
        """
        if len(plans) == 1:
            seconds = self._stopwatch.turn(_runner(plans[0], feed))
            return Outcome(winner=0, seconds=(seconds,), is_sure=True), ""
        before = Load()
        turns = [partial(self._stopwatch.turn, _runner(compiled, feed)) for compiled in plans]
        outcome, doubt = twice(turns, _simplest(plans), self._stopwatch.clock)
        if not doubt and is_crowded(before, Load(), cpu_count() or 1, usable()):
            second = sorted(outcome.seconds)[1]
            crowd = "other programs used the processors meanwhile"
            doubt = crowd if second < _FAR * outcome.seconds[outcome.winner] else ""
        if not doubt and others + max(map(_pools_wanted, plans)) > most_pools():
            doubt = "other sessions of the process have the thread pools that steps on the CPU would have had"
        return outcome, f"not kept for later sessions, since {doubt}" if doubt else ""

    def _try(
        self,
        planner: Planner,
        judgment: Judgment,
        feed: Mapping[str, Any],
        trials: list[tuple[Candidate, Compiled]],
        others: int,
    ) -> None:
        """Add to `trials` every candidate that compiles and runs as it should; one that does not only if all fail.

        Each has the thread pools that it will have when the rest is closed, see `_taken` for those of `others`.
        """
        failure: DriverError | NotDelegatedError | None = None
        fallen: list[tuple[Candidate, Compiled]] = []
        known: set[tuple[str, ...]] = set()
        for candidate in self._candidates(judgment):
            try:
                with not_counting(pools_held() - others):
                    compiled = self._compiler.compile(planner, placed_as(judgment, candidate.placement))
            except (DriverError, NotDelegatedError) as error:
                failure = error
                continue
            trials.append((candidate, compiled))
            if compiled.partitioning.plan.placement in known:
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
                known.add(compiled.partitioning.plan.placement)
        if not trials and fallen:
            trials.append(fallen.pop(0))
        close_all(compiled for _, compiled in fallen)
        if not trials and failure is not None:
            raise failure

    def _candidates(self, judgment: Judgment) -> list[Candidate]:
        """Baselines and the cheapest, those that need a device that nobody named only if there is no other way."""
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
    """Positions, those of fewest steps first, and of these the ones that accelerators have no part in."""

    def rank(number: int) -> tuple[int, bool]:
        steps = plans[number].plan.steps
        return len(steps), any(bound.guarded for bound in steps)

    return sorted(range(len(plans)), key=rank)


def _pools_wanted(compiled: Compiled) -> int:
    """How many thread pools a plan has where there is no other."""
    programs = {driver_program(bound.pool.program) for bound in compiled.plan.steps}
    return min(sum(isinstance(program, CpuProgram) and program.wants_pool for program in programs), most_pools())


def _watch(timed: Sequence[TimedPlacement]) -> Watch | None:
    """What holds runs of the first to what was measured; None where there was nothing to choose."""
    if len(timed) < 2:
        return None
    return Watch(
        Promise(seconds=timed[0].measured, rival_seconds=min(timed_placement.measured for timed_placement in timed[1:]))
    )


def _runner(compiled: Compiled, feed: Mapping[str, Any], sizes: Sequence[Any] | None = None) -> Callable[[], object]:
    names = tuple(compiled.partitioning.plan.graph.outputs)
    return lambda: compiled.plan.run(feed, names, sizes=sizes)


def _fell_back(compiled: Compiled) -> bool:
    """Something did not compile, or did not run, and another device took its place."""
    return bool(compiled.notes) or any(bound.failures for bound in compiled.plan.steps)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
