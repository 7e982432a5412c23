"""Policy `measured`: candidates compiled, timed here with real input, and the fastest kept.

What was measured is remembered by the model's contents, devices with versions and options, input shapes, rules and our
own version, so that it is paid for once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from nnadapter.costs.calibration_files import driver_version
from nnadapter.costs.remembered import MeasuredCandidate, MeasuredChoice, MeasuredDevice, choice_key, recall, remember
from nnadapter.errors import DriverError, NotDelegatedError, StoredFileError
from nnadapter.planning.judgment import Judgment, placed_as
from nnadapter.planning.placing import place
from nnadapter.planning.planner import Planner
from nnadapter.planning.setting import Setting
from nnadapter.process.closing import close_all
from nnadapter.process.own_version import own_version
from nnadapter.running.compilation import Compiled, Compiler, TimedPlacement
from partition.by_cost.latency import Candidate
from partition.by_cost.origin import OriginKind
from partition.plan import Plan

EARLIER = "measured in an earlier session"
"""How a remembered choice came about."""
_MOST = 6
"""Candidates that are compiled and timed, baselines included."""
_ROUNDS = 7
"""Turns of each candidate."""
_FAR_BEHIND = 1.5
"""Times the fastest."""
_TURN_RUNS = (2, 50)
"""Fewest and most runs in a turn."""
_TURN_SECONDS = 0.02
"""A turn of short runs takes about so long."""


class PastChoices:
    """What was measured in one setting, here and in earlier sessions."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def recall(self, judgment: Judgment) -> tuple[Recalled | None, str]:
        """Return what was chosen for these verdicts and shapes, and a note: why a file that is there is not used."""
        known, note = recall(self._key(judgment))
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
                TimedPlacement(origin=each.origin, predicted=None, measured=each.seconds) for each in known.timed
            ),
        ), note

    def keep(self, judgment: Judgment, plan: Plan, timed: Sequence[TimedPlacement]) -> str:
        """Keep the plan that was fastest for the next time; return why that failed, empty where it did not."""
        graph = plan.graph
        placement = {node.name: plan.placement[atom] for node, atom in zip(graph.nodes, graph.atom_of, strict=True)}
        measured = tuple(MeasuredCandidate(origin=each.origin, seconds=each.measured) for each in timed)
        try:
            remember(self._key(judgment), MeasuredChoice(placement=placement, timed=measured))
        except StoredFileError as error:
            return str(error)
        return ""

    def _key(self, judgment: Judgment) -> str:
        devices = [
            MeasuredDevice(name=device.name, version=driver_version(device.name), options=device.options)
            for device in self._setting.devices
        ]
        constraints = self._setting.constraints
        named = [device.name for device in self._setting.devices if device.named]
        said = f"{constraints.rules!r} {constraints.plan_file!r} {constraints.fallback} {named}"
        return choice_key(judgment.model.prepared.digest, devices, judgment.model.shapes, own_version(), said)


@dataclass(frozen=True, eq=False, kw_only=True)
class Recalled:
    """What was chosen earlier."""

    judgment: Judgment
    """Placed as it was then."""
    timed: tuple[TimedPlacement, ...]
    """Fastest first."""


class Measurer:
    """Chooses by measurement for one session."""

    def __init__(self, compiler: Compiler) -> None:
        self._memory, self._compiler = PastChoices(compiler.setting), compiler

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
        known, note = self._memory.recall(judgment)
        if known is not None:
            return replace(self._compiler.compile(planner, known.judgment), timed=known.timed, chosen=EARLIER)
        if not judgment.model.graph.atoms:
            return self._compiler.compile(planner, judgment)
        compiled, timed = self._measured(planner, judgment, feed)
        how = "measured here with random input" if made_up else "measured here with the input of the first run"
        notes = (how, note, self._memory.keep(judgment, compiled.partitioning.plan, timed))
        return replace(compiled, timed=timed, chosen="; ".join(filter(None, notes)))

    def _measured(
        self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any]
    ) -> tuple[Compiled, tuple[TimedPlacement, ...]]:
        trials: list[tuple[Candidate, Compiled]] = []
        try:
            self._try(planner, judgment, feed, trials)
            seconds = _timings([_runner(compiled, feed) for _, compiled in trials])
        except BaseException:
            close_all(compiled for _, compiled in trials)
            raise
        order = sorted(range(len(trials)), key=lambda number: seconds[number])
        timed = tuple(
            TimedPlacement(origin=trials[number][0].origin, predicted=trials[number][0].cost, measured=seconds[number])
            for number in order
        )
        close_all(trials[number][1] for number in order[1:])
        return trials[order[0]][1], timed

    def _try(
        self, planner: Planner, judgment: Judgment, feed: Mapping[str, Any], trials: list[tuple[Candidate, Compiled]]
    ) -> None:
        """Add to `trials` every candidate that compiles and runs as it should; one that does not only if all fail."""
        failure: DriverError | NotDelegatedError | None = None
        fallen: list[tuple[Candidate, Compiled]] = []
        known: set[tuple[str, ...]] = set()
        for candidate in self._candidates(judgment):
            try:
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
        """Baselines and the cheapest, those that need a device that nobody named only if there is no other way.

        What runs on the host alone comes first: it is one session, and thread pools are few (`sessions.pools`). Behind
        a plan of many segments it would get none, be timed with one thread, and stay so for as long as it is kept.
        """
        setting = self._compiler.setting
        candidates = place(judgment, setting).candidates()
        if setting.constraints.fallback == "forbid":
            named = {device.name for device in setting.devices if device.named}
            candidates = tuple(each for each in candidates if named.issuperset(each.placement)) or candidates
        return sorted(candidates, key=_rank)[:_MOST]


_BASELINES = (OriginKind.ALL_ON, OriginKind.EVERYTHING_SUPPORTED)


def _rank(candidate: Candidate) -> int:
    kind = candidate.origin.kind
    return _BASELINES.index(kind) if kind in _BASELINES else len(_BASELINES)


def _runner(compiled: Compiled, feed: Mapping[str, Any]) -> Callable[[], object]:
    names = tuple(compiled.partitioning.plan.graph.outputs)
    return lambda: compiled.plan.run(feed, names)


def _fell_back(compiled: Compiled) -> bool:
    """Something did not compile, or did not run, and another device took its place."""
    return bool(compiled.notes) or any(bound.failures for bound in compiled.plan.steps)


def _timings(runs: Sequence[Callable[[], object]]) -> list[float]:
    """The median seconds of each.

    They take turns, so that a change of the machine's load meets all of them. A turn is a few runs, of which the first
    does not count: threads of the one before it may still wait in a loop for more to do. One that is far behind gets
    no further turn.
    """
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    left = list(range(len(runs)))
    for _ in range(_ROUNDS):
        for number in left:
            seconds[number].extend(_turn(runs[number])[1:])
        best = min(median(seconds[number]) for number in left)
        left = [number for number in left if median(seconds[number]) <= _FAR_BEHIND * best]
    return [median(taken) for taken in seconds]


def _turn(run: Callable[[], object]) -> list[float]:
    taken: list[float] = []
    while len(taken) < _TURN_RUNS[0] or (sum(taken) < _TURN_SECONDS and len(taken) < _TURN_RUNS[1]):
        before = time.perf_counter()
        run()
        taken.append(time.perf_counter() - before)
    return taken
