"""Cheapest choice per unit under a limit on the sum of damages, by mixed-integer programming."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partition.by_cost.pricing import Flags, Indices, Seconds
from partition.graph import GraphError

_EXACT_UNITS = 64
"""Number of units up to which the optimum is proved."""
_GAP = 1e-3
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """Value that one unit passes to another."""

    producer: int
    reader: int
    seconds: Seconds
    """[lanes, lanes] Cost from the producer's lane to the reader's; 0 within a lane."""


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Units with choices that take time and do damage."""

    seconds: Seconds
    """[units, choices] Time of a choice; infinite if unavailable."""
    damage: Seconds
    """[units, choices] Damages of units add up."""
    lane: Indices
    """[choices] Lane of a choice; values pass without cost within it."""
    edges: Sequence[Edge] = ()

    def __post_init__(self) -> None:
        units, choices = self.seconds.shape
        if self.damage.shape != (units, choices) or self.lane.shape != (choices,):
            raise GraphError(
                f"choices have seconds {self.seconds.shape}, damage {self.damage.shape} and lane {self.lane.shape}, "
                "expected [units, choices] for the first two, and [choices] for lane"
            )
        lanes = int(self.lane.max(initial=-1)) + 1
        for edge in self.edges:
            if edge.seconds.shape != (lanes, lanes) or not (0 <= edge.producer < units and 0 <= edge.reader < units):
                raise GraphError(
                    f"an edge from unit {edge.producer} to {edge.reader} has seconds {edge.seconds.shape}, expected "
                    f"the shape [{lanes}, {lanes}], and unit numbers below {units}"
                )
        for array in (self.seconds, self.damage, *(edge.seconds for edge in self.edges)):
            if np.isnan(array).any() or (array < 0).any():
                raise GraphError("choices have a negative time or damage, or NaN; expected numbers of at least 0")

    def total_seconds(self, chosen: Indices) -> float:
        lanes = self.lane[chosen]
        run = self.seconds[np.arange(len(chosen)), chosen].sum()
        return float(run + sum(edge.seconds[lanes[edge.producer], lanes[edge.reader]] for edge in self.edges))

    def total_damage(self, chosen: Indices) -> float:
        return float(self.damage[np.arange(len(chosen)), chosen].sum())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Chosen:
    """Choice per unit, with a lower bound on the time of all choices within the budget."""

    choice: Indices
    seconds: float
    damage: float
    bound: float

    @property
    def gap(self) -> float:
        """Excess of the time over the bound, as a fraction."""
        return 0.0 if self.seconds <= self.bound else self.seconds / self.bound - 1 if self.bound > 0 else float("inf")


def choose_within_budget(choices: Choices, budget: float, *, limit_s: float = 20.0) -> Chosen | None:
    """Return the fastest choice with damages of at most `budget` in total; None if there is none.

    scipy's HiGHS solves an integer program: a variable per choice, and the edges' local polytope. Its dual bound is the
    lower bound. Up to 64 units, the choice is optimal unless `limit_s` seconds pass. Raises GraphError without scipy.
    """
    units = choices.seconds.shape[0]
    if not units:
        return Chosen(choice=np.zeros(0, np.int64), seconds=0.0, damage=0.0, bound=0.0)
    able = np.isfinite(choices.seconds) & (choices.damage <= budget)
    if not able.any(axis=1).all():
        return None
    program = _Program(choices, able, budget)
    gap = 0.0 if units <= _EXACT_UNITS else _GAP
    for margin in (0.0, 1e-6, 1e-4):  # the solver may exceed the budget by its tolerance
        found = program.solve(1 - margin, gap, limit_s)
        if found is None:
            continue
        choice, bound = found
        damage = choices.total_damage(choice)
        if damage <= budget * (1 + _ROUNDING):
            seconds = choices.total_seconds(choice)
            return Chosen(choice=choice, seconds=seconds, damage=damage, bound=min(bound, seconds))
    return None


class _Program:
    """Integer program, with times scaled by the largest cost and damages by the budget."""

    def __init__(self, choices: Choices, able: Flags, budget: float) -> None:
        self._choices, self._able = choices, able
        self._unit_of, self._choice_of = np.nonzero(able)
        self._lanes = int(choices.lane.max()) + 1
        self._edges = [edge for edge in choices.edges if edge.seconds.any()]
        costs = [choices.seconds[able], *(edge.seconds.ravel() for edge in self._edges)]
        self._costs = np.concatenate(costs)
        self._scale = float(self._costs[np.isfinite(self._costs)].max(initial=0)) or 1.0
        damages = choices.damage[able]
        self._damages = damages / budget if budget > 0 else np.zeros_like(damages)

    def solve(self, budget: float, gap: float, limit_s: float) -> tuple[Indices, float] | None:
        """Return the choice per unit, and a lower bound in seconds."""
        optimize, sparse = _scipy()
        rows, columns, entries, sides = self._equalities()
        variables, bounded = len(self._costs), len(self._unit_of)
        equalities = sparse.csr_matrix((entries, (rows, columns)), shape=(len(sides), variables))
        limit = sparse.csr_matrix((self._damages, (np.zeros(bounded, int), np.arange(bounded))), shape=(1, variables))
        impossible = np.isinf(self._costs)
        result = optimize.milp(
            np.where(impossible, 0.0, self._costs / self._scale),
            integrality=np.arange(variables) < bounded,
            bounds=optimize.Bounds(0, np.where(impossible, 0.0, 1.0)),
            constraints=[
                optimize.LinearConstraint(equalities, sides, sides),
                optimize.LinearConstraint(limit, -np.inf, budget),
            ],
            options={"mip_rel_gap": gap, "time_limit": limit_s},
        )
        if result.x is None:
            return None
        choice = np.zeros(self._able.shape[0], np.int64)
        taken = np.flatnonzero(result.x[:bounded] > 0.5)
        choice[self._unit_of[taken]] = self._choice_of[taken]
        bound = result.fun if result.mip_dual_bound is None else min(result.mip_dual_bound, result.fun)
        return choice, float(bound) * self._scale

    def _equalities(self) -> tuple[Indices, Indices, Seconds, Seconds]:
        """Return rows, columns and entries of the matrix of the equalities, and their right sides.

        Each unit has one choice. At each end of an edge, variables of lane pairs add up to variables of choices in the
        lane.
        """
        triples = [(unit, at, 1.0) for at, unit in enumerate(self._unit_of.tolist())]
        sides = [1.0] * self._able.shape[0]
        at_unit: dict[int, list[int]] = {}
        for at, unit in enumerate(self._unit_of.tolist()):
            at_unit.setdefault(unit, []).append(at)
        for number, edge in enumerate(self._edges):
            pairs = len(self._unit_of) + number * self._lanes**2 + np.arange(self._lanes**2).reshape(self._lanes, -1)
            for unit, by_lane in ((edge.producer, pairs), (edge.reader, pairs.T)):
                triples += self._edge_end(len(sides), at_unit[unit], by_lane)
                sides += [0.0] * self._lanes
        rows, columns, entries = zip(*triples, strict=True)
        return np.array(rows), np.array(columns), np.array(entries), np.array(sides)

    def _edge_end(self, first_row: int, variables: Sequence[int], pairs: Indices) -> Iterator[tuple[int, int, float]]:
        for lane, columns in enumerate(pairs):
            yield from ((first_row + lane, int(column), 1.0) for column in columns)
        for variable in variables:
            yield first_row + int(self._choices.lane[self._choice_of[variable]]), variable, -1.0


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise GraphError(
            "a choice within a budget needs scipy, which is not installed; install it: pip install 'nnadapter[latency]'"
        ) from error
    return optimize, sparse
