"""The search: what is beyond the tolerance by itself, behind which node first, and which nodes are only together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nnadapter.accuracy.cutting import Cutting, Excerpt, Values, pieces
from nnadapter.accuracy.tolerances import Allowed
from nnadapter.accuracy.trials import HostValues, Trials
from nnadapter.running.deviation import Deviation, deviation, largest

_PIECE_BYTES = 1 << 28
"""Of values that are held to look at every atom by itself."""


def first_true(low: int, high: int, test: Callable[[int], bool]) -> int:
    """A number above `low` up to `high` for which `test` is true and false for the one before.

    It is taken to be false for `low` and true for `high`, and may change its mind between.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if test(middle) else (middle, high)
    return high


@dataclass(frozen=True, eq=False, slots=True)
class Stretch:
    """Atoms that follow each other, computed on their devices."""

    start: int
    """The first atom."""
    end: int
    """The one behind the last."""
    excerpt: Excerpt
    feed: Values
    got: Values
    expected: Values
    """The CPU's values behind the last atom."""
    deviation: Deviation


@dataclass(frozen=True, eq=False)
class Search:
    """Compares parts of one model on devices with the CPU."""

    cutting: Cutting
    tolerances: Allowed
    trials: Trials
    host: HostValues

    def alone(self) -> tuple[Mapping[int, Deviation], tuple[int, ...]]:
        """Per atom on a device its local error, and the atoms whose device did not run them by themselves."""
        deviations: dict[int, Deviation] = {}
        unchecked_atoms: list[int] = []
        for first, last in pieces(self.cutting, _PIECE_BYTES):
            atoms = [atom for atom in self.cutting.accelerated if first <= atom < last]
            if atoms:
                values = self.host.inside(first, last)
                unchecked_atoms += self._side_by_side(atoms, values, deviations)
        return deviations, tuple(unchecked_atoms)

    def accumulated(self) -> Stretch:
        """The device's own values from the inputs to the first border found at which they differ.

        They are taken to differ behind the last atom.
        """
        atoms = self.cutting.accelerated
        stretches: dict[int, Stretch] = {}

        def differs(number: int) -> bool:
            stretches[number] = self.stretch(0, atoms[number] + 1)
            return stretches[number].deviation.beyond > 0

        number = first_true(-1, len(atoms) - 1, differs)
        return stretches.get(number) or self.stretch(0, atoms[number] + 1)

    def together(self, stretch: Stretch) -> Stretch:
        """The shortest stretch found with the same end that differs on the CPU's values, as `stretch` does."""
        atoms = [atom for atom in self.cutting.accelerated if atom < stretch.end]
        stretches: dict[int, Stretch] = {}

        def agrees(number: int) -> bool:
            stretches[number] = self.stretch(atoms[number], stretch.end)
            return not stretches[number].deviation.beyond

        number = first_true(0, len(atoms) - 1, agrees) - 1
        return stretches.get(number) or self.stretch(atoms[0], stretch.end)

    def stretch(self, start: int, end: int, *, all_visible: bool = False) -> Stretch:
        """Compute the atoms from `start` to before `end` on their devices, on the CPU's values at the first border.

        Args:
            start: the first atom.
            end: the one behind the last.
            all_visible: let no value be inside of what the device may fuse.
        """
        start_values = self.host.at(start)
        excerpt = self.cutting.between(range(start, end), start_values, all_visible=all_visible)
        got, end_values = self.trials.run(excerpt, start_values).values, self.host.at(end)
        expected = {name: end_values[name] for name in got if name in end_values}
        feed = {name: start_values[name] for name in excerpt.inputs}
        return Stretch(start, end, excerpt, feed, got, expected, self._largest(got, expected))

    def _side_by_side(self, atoms: Sequence[int], values: Values, deviations: dict[int, Deviation]) -> Iterator[int]:
        """Fill in what atoms are off by; those that their device did not run are tried once more in halves."""
        excerpt = self.cutting.side_by_side(atoms, values)
        outcome = self.trials.run(excerpt, values)
        missed = []
        for atom in atoms:
            if {node.name for node in self.cutting.nodes([atom])} & outcome.elsewhere:
                missed.append(atom)
            else:
                deviations[atom] = self._largest(outcome.values, {n: values[n] for n in self.cutting.visible(atom)})
        if len(atoms) == 1:
            yield from missed
        elif missed:
            half = (len(missed) + 1) // 2
            for part in (missed[:half], missed[half:]):
                if part:
                    yield from self._side_by_side(part, values, deviations)

    def _largest(self, got: Values, expected: Values) -> Deviation:
        compared = [
            deviation(name, got[name], expected_value, self.tolerances.of(name))
            for name, expected_value in expected.items()
        ]
        return largest(compared or [Deviation(value="")])
