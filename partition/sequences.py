"""Schedules for three and more labels: in which order the devices take their turns.

A turn of a label runs every atom of that label that can run, until nothing of it is ready. A schedule is therefore
told by its labels alone. Running more in a turn never harms: a state in which more atoms are done can follow every
sequence that a state with fewer can. So the fewest turns are found by a breadth-first search over such states, and
a state whose atoms are a subset of another's of the same length can be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Turn = tuple[str, tuple[int, ...]]
"""A label and the atoms that run in its turn, ascending."""

_WORK = 64_000_000
"""Atoms that the search may touch, copies of a state included: a few tenths of a second at most."""
_WIDEST = 128
"""States kept per length at most: dropping subsets is quadratic in it."""


@dataclass(slots=True)
class _State:
    """What is done after some turns; changed only by `_drain`, on a copy."""

    done: int
    """One bit per atom."""
    pending: list[int]
    """For every atom, how many of its predecessors are not done."""
    ready: dict[str, list[int]]
    """Per label, the atoms that could run now."""
    turns: tuple[str, ...]


def schedule(
    predecessors: Sequence[Sequence[int]], placement: Sequence[str], *, work: int = _WORK
) -> tuple[list[Turn], bool]:
    """Return turns that run every atom, and whether their number is the smallest possible.

    1. The greedy schedule, always the label with most ready atoms, is linear and bounds the number of turns.
    2. Where the graph is small enough for `work`, a search keeps the best states of every length, as many as `work`
       allows. If it never had to drop a state that could have been better, its answer is exact.
    3. Else the answer is the better of the two and may be one turn or more above the minimum.

    Args:
        predecessors: for every atom, the atoms it reads from, all of them before it, each once.
        placement: the label of every atom.
        work: atoms that the search may touch.
    """
    successors = _successors(predecessors)
    greedy = _greedy(_start(predecessors, placement), successors, placement)
    labels = len(set(placement))
    width = min(_WIDEST, work // max(1, len(greedy) * labels * len(placement)))
    if width < 2:
        return greedy, len(greedy) <= labels
    turn_labels, exact = _search(_start(predecessors, placement), successors, placement, width, len(greedy))
    return greedy if turn_labels is None else _follow(turn_labels, predecessors, successors, placement), exact


def _successors(predecessors: Sequence[Sequence[int]]) -> list[list[int]]:
    successors: list[list[int]] = [[] for _ in predecessors]
    for atom, atom_predecessors in enumerate(predecessors):
        for predecessor in atom_predecessors:
            successors[predecessor].append(atom)
    return successors


def _start(predecessors: Sequence[Sequence[int]], placement: Sequence[str]) -> _State:
    ready: dict[str, list[int]] = {label: [] for label in placement}
    for atom, atom_predecessors in enumerate(predecessors):
        if not atom_predecessors:
            ready[placement[atom]].append(atom)
    return _State(0, [len(atom_predecessors) for atom_predecessors in predecessors], ready, ())


def _drain(state: _State, label: str, successors: Sequence[Sequence[int]], placement: Sequence[str]) -> list[int]:
    """Run one turn of `label`, changing `state`; return the atoms in the order in which they ran."""
    queue = state.ready[label]
    state.ready[label] = []
    for atom in queue:  # grows while it is walked
        for successor in successors[atom]:
            state.pending[successor] -= 1
            if not state.pending[successor]:
                (queue if placement[successor] == label else state.ready[placement[successor]]).append(successor)
    return queue


def _greedy(state: _State, successors: Sequence[Sequence[int]], placement: Sequence[str]) -> list[Turn]:
    turns: list[Turn] = []
    while any(state.ready.values()):
        label = max(state.ready, key=lambda name: len(state.ready[name]))
        turns.append((label, tuple(sorted(_drain(state, label, successors, placement)))))
    return turns


def _search(
    start: _State, successors: Sequence[Sequence[int]], placement: Sequence[str], width: int, bound: int
) -> tuple[tuple[str, ...] | None, bool]:
    """Return turns fewer than `bound` if some are found, and whether nothing better can exist."""
    states, exact = [start], True
    everything = (1 << len(placement)) - 1
    for _ in range(bound - 1):
        following = [
            _after(state, label, successors, placement)
            for state in states
            for label, ready in state.ready.items()
            if ready
        ]
        for state in following:
            if state.done == everything:
                return state.turns, exact
        states = _undominated(following)
        exact = exact and len(states) <= width
        states = states[:width]
    return None, exact


def _after(state: _State, label: str, successors: Sequence[Sequence[int]], placement: Sequence[str]) -> _State:
    ready = {name: list(atoms) for name, atoms in state.ready.items()}
    copy = _State(state.done, list(state.pending), ready, (*state.turns, label))
    for atom in _drain(copy, label, successors, placement):
        copy.done |= 1 << atom
    return copy


def _undominated(states: Sequence[_State]) -> list[_State]:
    """Those states that no other one contains, fullest first; one of each equal set."""
    maximal_states: list[_State] = []
    for state in sorted(states, key=lambda state: -state.done.bit_count()):
        if not any(state.done & other.done == state.done for other in maximal_states):
            maximal_states.append(state)
    return maximal_states


def _follow(
    turns: Sequence[str],
    predecessors: Sequence[Sequence[int]],
    successors: Sequence[Sequence[int]],
    placement: Sequence[str],
) -> list[Turn]:
    state = _start(predecessors, placement)
    return [(label, tuple(sorted(_drain(state, label, successors, placement)))) for label in turns]
