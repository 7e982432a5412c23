"""Search for the fastest configuration within an accuracy budget.

1. Every alternative is measured for all units at once; alternatives on the Pareto front are then measured for each unit
   alone.
2. An additive model of times and noise proposes the fastest configuration for a noise budget
   (`partition.by_cost.budget`). Measurements bisect that budget, because damages add up only roughly.
3. Near the solution, units get a higher or lower precision one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from nnadapter.drivers.capability import Precision
from nnadapter.errors import BudgetError, NNAdapterError
from nnadapter.records import dataclass, field
from nnadapter.session.session import InferenceSession
from nnadapter.tuning.budget import Budget, Outputs, noise_share
from nnadapter.tuning.configurations import Configuration, Workshop, run_seconds, simulated_seconds
from partition.by_cost.budget import Choices, Chosen, Edge, choose_within_budget

_FEW_SAMPLES = 4
"""Samples that rank the damage of units; the rank correlation with 16 is about 0.97."""
_PROMISING = 3
"""Number of quantized alternatives per lane to measure for single units."""
_BISECTIONS = 7
_MOVES = 8
"""Number of units to try in each direction near the solution."""
_SHARES_OF_NOISE = (0.9, 0.8, 0.7, 0.5, 0.25)
_SHARE_FOR_UNITS = 0.5
"""Part of the time limit for the measurement of single units."""
_GUESSED_GAINS = {Precision.W8A8: 2.0, Precision.W8A16: 1.25}
"""Assumed speedup of integers over 16-bit floats in a search on another device."""
_FOR_HELD_OUT = 2
"""Evaluations reserved for held-out samples, if at least five are allowed."""
_NOISE = 0.01
"""Smallest relative difference of times that counts as real."""
_BORDER_SECONDS, _BORDER_BANDWIDTH = 50e-6, 4e9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """Measurements of a configuration."""

    configuration: Configuration
    seconds: float
    noise: float
    """Noise over signal of the worst output, in power."""
    score: float
    allowed: bool
    failure: str = ""


@dataclass(slots=True, eq=False)
class Found:
    """Result of a search."""

    bound: float = math.inf
    """Lower bound of the additive model at the permitted noise, in seconds; infinite if none."""
    damage_alone: dict[tuple[int, int], float] = field(default_factory=dict)
    """(unit, alternative) -> noise with only this unit in the alternative."""
    damage_in_place: dict[int, float] = field(default_factory=dict)
    """Unit -> noise that disappears if the unit is computed in floating point."""
    choices: Choices | None = None
    stopped: str = ""

    def predicted_seconds(self, measured: Measured) -> float:
        """Return the time by the additive model, otherwise as measured."""
        seconds = math.inf if self.choices is None else self.choices.total_seconds(np.array(measured.configuration))
        return seconds if math.isfinite(seconds) else measured.seconds

    def damage_of(self, unit: int, alternative: int) -> float | None:
        """Return the noise of quantizing one unit alone; if not measured, that of its fastest measured alternative."""
        if (unit, alternative) in self.damage_alone:
            return self.damage_alone[unit, alternative]
        return next((noise for (at, _), noise in self.damage_alone.items() if at == unit), None)

    def gains(self, unit: int, floating: int) -> bool:
        """Return True if an alternative of a unit is faster than a floating one."""
        return self.choices is not None and bool(
            self.choices.seconds[unit].min() < self.choices.seconds[unit, floating] * (1 - _NOISE)
        )

    def saved_seconds(self, unit: int, floating: int, alternative: int) -> float:
        if self.choices is None:
            return 0.0
        saved = self.choices.seconds[unit, floating] - self.choices.seconds[unit, alternative]
        return float(saved) if np.isfinite(saved) else 0.0


class _OutOfLimitError(Exception):
    pass


@dataclass(eq=False, kw_only=True)
class Search:
    """Search with counted evaluations and a deadline. Sessions are timed in turns with `host`, the CPU's session."""

    workshop: Workshop
    budget: Budget
    items: Sequence[Any]
    reference: Outputs
    baseline: float
    host: InferenceSession
    max_evaluations: int | None
    deadline: float | None
    report: Callable[[str], None]
    evaluations: int = 0
    trials: int = 0
    measured: dict[Configuration, Measured] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    _times: tuple[Mapping[int, Measured], Mapping[int, Mapping[str, float]]] = field(default=({}, {}), init=False)
    """Alternative -> its measurements for all units; alternative -> time that it saves per kind of product."""

    @cached_property
    def on_host(self) -> Configuration:
        return self._floating(len(self.workshop.alternatives) - 1)

    def measure_baseline(self) -> None:
        """Time float32 on the CPU, even if rules exclude it."""
        self.evaluations += 1
        self.trials += 1
        self.measured[self.on_host] = Measured(
            configuration=self.on_host, seconds=run_seconds([self.host], self.workshop.feeds)[0], noise=0.0,
            score=self.baseline, allowed=self._permitted(self.on_host),
        )  # fmt: skip

    def measure(self, configuration: Configuration, what: str) -> Measured:
        """Return the measurements of a configuration, which is measured only once."""
        if configuration in self.measured:
            return self.measured[configuration]
        self._check_limits()
        self.report(what)
        self.trials += 1
        try:
            with self.workshop.open(configuration) as session:
                outputs = [session.run(None, feed) for feed in self.workshop.feeds]
                seconds = self._seconds(session, configuration)
        except NNAdapterError as error:
            measured = Measured(
                configuration=configuration, seconds=math.inf, noise=math.inf, score=-math.inf, allowed=False,
                failure=str(error),
            )  # fmt: skip
        else:
            measured = self._scored(configuration, outputs, seconds)
        self.measured[configuration] = measured
        return measured

    def verify(self, configuration: Configuration) -> Measured:
        """Measure a configuration on its own devices."""
        self.report("verifying on the devices")
        self.trials += 1
        with self.workshop.open(configuration, on_stand_in=False) as session:
            outputs = [session.run(None, feed) for feed in self.workshop.feeds]
        return self._scored(configuration, outputs, self.measured[configuration].seconds)

    def _scored(self, configuration: Configuration, outputs: Outputs, seconds: float) -> Measured:
        self.evaluations += 1
        score = self.budget.score(outputs, self.reference, self.items)
        return Measured(
            configuration=configuration, seconds=seconds, noise=noise_share(outputs, self.reference), score=score,
            allowed=self._permitted(configuration) and self.budget.allows(self.baseline, score),
        )  # fmt: skip

    def _permitted(self, configuration: Configuration) -> bool:
        return bool(self.workshop.able[np.arange(len(configuration)), list(configuration)].all())

    def _seconds(self, session: InferenceSession, configuration: Configuration) -> float:
        """Return the time, measured in turns with the CPU; on a stand-in, gains of integers are guessed."""
        workshop = self.workshop
        stand_ins = {self._floating(at) for at in configuration if workshop.has_stand_in([at])}
        if len(stand_ins) == 1 and any(map(workshop.is_quantized, configuration)):
            ways = [workshop.alternatives[at].way for at in configuration]
            gains = [1.0 if way is None else _GUESSED_GAINS.get(way.precision, 1.0) for way in ways]
            return self.measured[stand_ins.pop()].seconds * float(np.average(1 / np.array(gains), weights=self._work()))
        simulated = simulated_seconds(session, self.workshop.feeds)
        if simulated is not None:
            return simulated
        host, seconds = run_seconds([self.host, session], self.workshop.feeds)
        return seconds / host * self.measured[self.on_host].seconds

    def run(self) -> Found:
        """Search until all candidates are tried, a limit is reached, or the user interrupts."""
        found = Found()
        try:
            uniform = self._measure_uniform()
            promising = self._promising(uniform)
            if promising:
                self._times = uniform, self._saved_by_kind(uniform, promising)
                found.choices = self._choices({})
                solved = _fastest(found.choices)
                if solved is not None and self._try(solved):
                    found.bound = solved.bound
                else:
                    found.choices = self._with_damage(found)
                    found.bound = self._bisect(found.choices)
                    self._move(found.choices, found.damage_in_place)
        except _OutOfLimitError as limit:
            found.stopped = str(limit)
        except KeyboardInterrupt:
            if not any(measured.allowed for measured in self.measured.values()):
                raise
            found.stopped = "it was interrupted"
        self.best()
        return found

    def best(self) -> Measured:
        """Return the fastest allowed configuration. Raises BudgetError if none was found."""
        allowed = self.allowed()
        if not allowed:
            ran = [found for found in self.measured.values() if not found.failure]
            scores = [found.score for found in ran if self._permitted(found.configuration)]
            reached = f"the best of {len(scores)} reached {max(scores):.4g}" if scores else "none ran"
            raise BudgetError(
                f"no configuration that the rules permit is within {self.budget}: {reached}, the float model "
                f"reached {self.baseline:.4g}; allow a larger drop, or leave rules out"
            )
        return allowed[0]

    def allowed(self) -> list[Measured]:
        """Return the allowed configurations, fastest first."""
        return sorted((found for found in self.measured.values() if found.allowed), key=lambda found: found.seconds)

    def has_evaluations(self, reserved: int) -> bool:
        limit = self.max_evaluations
        return limit is None or self.evaluations < (limit - reserved if limit > 2 * reserved else limit)

    def quieter(self, rejected: Configuration, found: Found) -> Iterator[tuple[Measured, float]]:
        """Yield solutions with ever less noise than `rejected`, and their lower bounds, until a limit is reached."""
        if found.choices is None:
            return
        with suppress(_OutOfLimitError, KeyboardInterrupt):
            choices = found.choices = found.choices if found.damage_alone else self._with_damage(found)
            noise = choices.total_damage(np.array(rejected))
            for share in _SHARES_OF_NOISE:
                solved = choose_within_budget(choices, noise * share)
                if solved is not None:
                    yield self.measure(tuple(solved.choice.tolist()), "proposed: less noise"), solved.bound

    def _with_damage(self, found: Found) -> Choices:
        """Measure the damage of single units; return the additive model with it."""
        found.damage_alone = self._damage_alone([*self._times[1]])
        return self._choices(found.damage_alone)

    def _check_limits(self) -> None:
        if not self.has_evaluations(_FOR_HELD_OUT):
            raise _OutOfLimitError(f"the search reached {self.evaluations} evaluations, its limit")
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise _OutOfLimitError(f"the search reached its time limit after {time.perf_counter() - self.began:.0f} s")

    def _measure_uniform(self) -> dict[int, Measured]:
        workshop, able = self.workshop, self.workshop.able
        order = sorted(
            range(len(workshop.alternatives)),
            key=lambda at: (workshop.is_quantized(at), -workshop.alternatives[at].lane),
        )
        found = {}
        for at in order:
            alternative = workshop.alternatives[at]
            if alternative.way is None or able[:, at].any():
                text = f"all units in {workshop.text(alternative)} on {workshop.lanes[alternative.lane].name}"
                # without quantization even if rules do not permit it: the model of times starts from it
                whole = self._floating(at) if alternative.way is None else workshop.uniform(at)
                found[at] = self.measure(whole, text)
        return found

    def _promising(self, uniform: Mapping[int, Measured]) -> list[int]:
        """Return the quantized alternatives on the Pareto front of each lane, fastest first."""
        limit = min((found.seconds for found in self.allowed()), default=math.inf)
        chosen: list[int] = []
        for lane in range(len(self.workshop.lanes)):
            rows = sorted(
                (found.seconds, found.noise, at) for at, found in uniform.items()
                if self.workshop.alternatives[at].lane == lane and self.workshop.is_quantized(at)
                and math.isfinite(found.noise) and found.seconds <= limit
            )  # fmt: skip
            front: list[tuple[float, float, int]] = []
            for row in rows:
                if all(row[1] < better[1] for better in front):
                    front.append(row)
            chosen += [at for _, _, at in front[:_PROMISING]]
        return sorted(chosen, key=lambda at: uniform[at].seconds)

    def _saved_by_kind(self, uniform: Mapping[int, Measured], promising: Sequence[int]) -> dict[int, dict[str, float]]:
        """Return the time that each alternative saves, by kind of product.

        The time is measured for the fastest alternative of a lane; for others the total is divided among kinds by FLOP.
        """
        workshop, work = self.workshop, self._work()
        saved: dict[int, dict[str, float]] = {}
        measured_lanes: set[int] = set()
        for at in promising:
            lane = workshop.alternatives[at].lane
            total = uniform[self.workshop.floating(at)].seconds - uniform[at].seconds
            of_kind: dict[str, float] = {}
            for unit, chosen, share in zip(workshop.units, workshop.uniform(at), work, strict=True):
                if chosen == at and unit.kind:
                    of_kind[unit.kind] = of_kind.get(unit.kind, 0.0) + share
            saved[at] = {kind: total * part / sum(of_kind.values()) for kind, part in of_kind.items()}
            if lane not in measured_lanes and len(of_kind) > 1:
                saved[at] = self._measured_by_kind(at, saved[at])
                measured_lanes.add(lane)
        return saved

    def _measured_by_kind(self, at: int, by_work: Mapping[str, float]) -> dict[str, float]:
        whole, floating = self.workshop.uniform(at), self.workshop.floating(at)
        saved = dict(by_work)
        for kind in by_work:
            without = tuple(
                floating if unit.kind == kind else chosen
                for unit, chosen in zip(self.workshop.units, whole, strict=True)
            )
            found = self.measure(without, f"all but {kind} in {self.workshop.text(self.workshop.alternatives[at])}")
            gain = found.seconds - self.measured[whole].seconds
            if math.isfinite(gain) and abs(gain) > _NOISE * self.measured[whole].seconds:
                saved[kind] = gain
        return saved

    def _damage_alone(self, promising: Sequence[int]) -> dict[tuple[int, int], float]:
        """Return the noise that each unit adds in an alternative, with all others in the lane's floating precision.

        The time is limited; units that are not measured get the mean of measured ones.
        """
        workshop, able = self.workshop, self.workshop.able
        positions = range(0, len(workshop.feeds), -(-len(workshop.feeds) // _FEW_SAMPLES))
        pairs = [(unit, at) for at in promising for unit in np.flatnonzero(able[:, at]).tolist()]
        base = {at: self._noise_of(self._floating(at), positions) for at in promising}
        limit = math.inf
        if self.deadline is not None:
            limit = time.perf_counter() + (self.deadline - time.perf_counter()) * _SHARE_FOR_UNITS
        alone: dict[tuple[int, int], float] = {}
        for number, (unit, at) in enumerate(pairs):
            if time.perf_counter() > limit:
                break
            self.report(f"unit {number + 1} of {len(pairs)} alone")
            noise = self._noise_of(_with(self._floating(at), unit, at), positions)
            alone[unit, at] = max(0.0, noise - base[at])
        for at in promising:  # units without a measurement get the mean of the others
            known = [noise for (_, of), noise in alone.items() if of == at and math.isfinite(noise)]
            mean = float(np.mean(known)) if known else 1.0
            alone.update(((unit, at), mean) for unit, of in pairs if of == at and (unit, at) not in alone)
        return alone

    def _floating(self, alternative: int) -> Configuration:
        return (self.workshop.floating(alternative),) * len(self.workshop.units)

    def _noise_of(self, configuration: Configuration, positions: Sequence[int]) -> float:
        feeds = [self.workshop.feeds[at] for at in positions]
        self.trials += 1
        try:
            with self.workshop.open(configuration) as session:
                outputs = [session.run(None, feed) for feed in feeds]
        except NNAdapterError:
            return math.inf
        return noise_share(outputs, [self.reference[at] for at in positions])

    def _choices(self, alone: Mapping[tuple[int, int], float]) -> Choices:
        """Return the additive model: times divided among units by work."""
        workshop, able, (uniform, saved) = self.workshop, self.workshop.able, self._times
        units, work = len(workshop.units), self._work()
        kinds = np.array([unit.kind for unit in workshop.units])
        seconds = np.full((units, len(workshop.alternatives)), np.inf)
        damage = np.zeros_like(seconds)
        for at, alternative in enumerate(workshop.alternatives):
            if alternative.way is None and at in uniform and math.isfinite(uniform[at].seconds):
                seconds[:, at] = np.where(able[:, at], uniform[at].seconds * work / work.sum(), np.inf)
                damage[:, at] = uniform[at].noise / units
        for at, of_kind in saved.items():
            floating = self.workshop.floating(at)
            for kind, gain in of_kind.items():
                members = able[:, at] & (kinds == kind)
                share = work[members] / work[members].sum()
                seconds[members, at] = np.maximum(seconds[members, floating] - gain * share, 0.0)
            for unit in np.flatnonzero(able[:, at]).tolist():
                damage[unit, at] = damage[unit, floating] + alone.get((unit, at), 0.0)
        lanes = np.array([alternative.lane for alternative in workshop.alternatives])
        is_possible = np.isfinite(damage)
        return Choices(np.where(is_possible, seconds, np.inf), np.where(is_possible, damage, 0.0), lanes, self._edges)

    def _work(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        flops = self.workshop.flops()
        return np.array([1.0 + sum(flops.get(name, 0) for name in unit.nodes) for unit in self.workshop.units])

    @cached_property
    def _edges(self) -> tuple[Edge, ...]:
        count = len(self.workshop.lanes)
        if count < 2:
            return ()
        away = 1 - np.eye(count)
        return tuple(
            Edge(producer, reader, (_BORDER_SECONDS + nbytes / _BORDER_BANDWIDTH) * away)
            for producer, reader, nbytes in self.workshop.crossings()
        )

    def _bisect(self, choices: Choices) -> float:
        """Bisect the logarithm of the noise budget; return the time bound at the largest allowed budget."""
        fastest, bound = _fastest(choices), math.inf
        if fastest is None:
            return bound
        high, low = max(fastest.damage, 1e-12), max(fastest.damage, 1e-12) * 1e-6
        budget = high if self.budget.metric is not None else min(high, 10 ** (-self.budget.limit / 10))
        for _ in range(_BISECTIONS):
            solved = choose_within_budget(choices, budget)
            if solved is not None and self._try(solved):
                bound, low = solved.bound, budget
            else:
                high = budget
            if high <= low * 1.05:
                break
            budget = math.sqrt(low * high)
        return bound

    def _try(self, solved: Chosen) -> bool:
        configuration = tuple(solved.choice.tolist())
        quantized = sum(map(self.workshop.is_quantized, configuration))
        return self.measure(configuration, f"proposed: {quantized} of {len(configuration)} units quantized").allowed

    def _move(self, choices: Choices, in_place: dict[int, float]) -> None:
        """Raise the precision of units in a faster, disallowed configuration, then lower it in the best one."""
        allowed = self.allowed()
        limit = choices.total_seconds(np.array(allowed[0].configuration)) if allowed else math.inf
        rejected = [found for found in self.measured.values() if not found.allowed and math.isfinite(found.noise)]
        faster = [found for found in rejected if choices.total_seconds(np.array(found.configuration)) < limit]
        if faster:
            self._raise_units(min(faster, key=lambda found: found.noise), choices, in_place)
        if self.allowed():
            self._lower_units(self.best(), choices)

    def _raise_units(self, start: Measured, choices: Choices, in_place: dict[int, float]) -> None:
        """Restore floating precision for the unit that removes the most noise, until the configuration is allowed."""
        current = start
        for _ in range(3):
            tried: list[Measured] = []
            for unit in self._by_damage(current.configuration, choices)[:_MOVES]:
                raised = _with(current.configuration, unit, self.workshop.floating(current.configuration[unit]))
                found = self.measure(raised, f"unit {self.workshop.units[unit].name!r} raised")
                in_place[unit] = current.noise - found.noise
                tried.append(found)
                if found.allowed:
                    return
            if not tried:
                return
            current = min(tried, key=lambda found: found.noise)

    def _by_damage(self, configuration: Configuration, choices: Choices) -> list[int]:
        quantized = [unit for unit, at in enumerate(configuration) if self.workshop.is_quantized(at)]
        return sorted(quantized, key=lambda unit: -choices.damage[unit, configuration[unit]])

    def _lower_units(self, start: Measured, choices: Choices) -> None:
        """Give units faster alternatives of their lane, one by one, while the configuration is allowed."""
        current = start
        options = []
        for unit, at in enumerate(current.configuration):
            lane = self.workshop.alternatives[at].lane
            for other, alternative in enumerate(self.workshop.alternatives):
                saved = choices.seconds[unit, at] - choices.seconds[unit, other]
                if alternative.lane == lane and np.isfinite(saved) and saved > 0:
                    options.append((saved / max(choices.damage[unit, other], 1e-12), unit, other))
        for _, unit, other in sorted(options, reverse=True)[:_MOVES]:
            lowered = _with(current.configuration, unit, other)
            found = self.measure(lowered, f"unit {self.workshop.units[unit].name!r} lowered")
            if found.allowed:
                current = found


def _fastest(choices: Choices) -> Chosen | None:
    return choose_within_budget(choices, float(np.where(np.isfinite(choices.seconds), choices.damage, 0.0).sum()))


def _with(configuration: Configuration, unit: int, alternative: int) -> Configuration:
    return (*configuration[:unit], alternative, *configuration[unit + 1 :])
