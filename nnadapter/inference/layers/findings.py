"""What was found, as values, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from nnadapter.accuracy.saving import SavedFindings
from nnadapter.running.deviation import Deviation

_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Nodes that follow each other on devices, and their largest difference from the CPU."""

    nodes: tuple[str, ...]
    """Names of the model's own nodes; several where they stand for one thing, or were run together."""
    op_types: tuple[str, ...]
    devices: tuple[str, ...]
    deviation: Deviation

    def __str__(self) -> str:
        """The nodes with what is off."""
        off, count = self.deviation, len(self.nodes)
        kinds, places = (", ".join(dict.fromkeys(names)) for names in (self.op_types, self.devices))
        ends = ", ".join(map(repr, self.nodes)) if count < 4 else f"{self.nodes[0]!r} to {self.nodes[-1]!r}"
        kinds = kinds if count < 4 else f"{count} nodes"
        times = "infinitely many" if off.tolerances == inf else f"{off.tolerances:.3g}"
        return f"{ends} ({kinds}) on {places}: {off.value!r} is off by {off.largest_absolute:.3g}, {times} tolerances"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """Pins that make the outputs agree."""

    path: str
    pins: tuple[str, ...]
    """Names of the nodes that are pinned to the CPU."""
    agrees: bool
    """The outputs agree with them; False where they do not even with every node on the CPU."""
    compilations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """Where a device's values leave the CPU's."""

    atoms: int
    """How many groups of nodes that stand for one thing run on devices."""
    outputs_agree: bool
    alone: tuple[Finding, ...]
    """Beyond the tolerance on the CPU's values (local error), in topological order."""
    accumulated: Finding | None
    """The first nodes behind which the device's own values are beyond the tolerance, found by bisecting."""
    together: Finding | None
    """What is beyond the tolerance on the CPU's values although no node in it is by itself."""
    fused: bool
    """`together` is beyond it only where the device may run its nodes as one."""
    largest: Finding | None
    """The largest local error, within the tolerance or not."""
    unchecked: tuple[str, ...]
    """Nodes that the device did not run by themselves."""
    compilations: int
    """Models that were compiled for the devices, but for what was saved and ruled out."""
    saved: SavedFindings | None = None
    ruled_out: RuledOut | None = None
    unwritten: str = ""
    """Why a file was not written."""

    @property
    def first(self) -> Finding | None:
        """What is to blame."""
        return next(iter(self.alone), None) or self.together

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        first = self.first
        return {**asdict(self), "first": None if first is None else asdict(first)}

    def __str__(self) -> str:
        """A line for each thing that is known."""
        return "\n".join(f"  {line}" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        if not self.atoms:
            yield "layers: no node ran on a device other than cpu and reference, so none was looked at"
            return
        yield f"layers: {self.atoms} on devices, {_counted(self.compilations, 'compilation')}"
        yield from self._culprits()
        if self.alone and self.outputs_agree:
            yield "the outputs agree although a node inside differs"
        if self.accumulated is not None:
            yield f"the device's own values differ first behind {self.accumulated}"
        if self.unchecked:
            more = len(self.unchecked) - _LISTED
            suffix = f" and {more} more" if more > 0 else ""
            yield f"not run by itself by its device: {', '.join(map(repr, self.unchecked[:_LISTED]))}{suffix}"
        if self.saved is not None:
            yield f"saved in {self.saved.folder}; to see it again: {self.saved.command}"
        if self.ruled_out is not None:
            yield _ruled_out(self.ruled_out)
        if self.unwritten:
            yield f"a file was not written: {self.unwritten}"

    def _culprits(self) -> Iterator[str]:
        if self.alone:
            yield f"wrong by itself: {self.alone[0]}"
            yield from (f"wrong by itself as well: {finding}" for finding in self.alone[1:_LISTED])
            if len(self.alone) > _LISTED:
                yield f"and {len(self.alone) - _LISTED} more"
        if self.together is not None:
            yield f"{self._how()}: {self.together}"
        if not self.alone and self.largest is not None:
            which = "no node that could be checked" if self.unchecked else "no node"
            off = self.largest.deviation.largest_absolute
            nearest = f"the largest: {self.largest}" if off else "what they compute is exactly the CPU's"
            yield f"{which} is beyond the tolerance by itself; {nearest}"

    def _how(self) -> str:
        """What is known of `together`."""
        if self.together is not None and not {*self.together.nodes}.isdisjoint(self.unchecked):
            return "wrong, with nodes in it that could not be checked by themselves"
        return "wrong only where the device runs them together" if self.fused else "error grows over"


def _ruled_out(ruled_out: RuledOut) -> str:
    count = _counted(len(ruled_out.pins), "pin")
    end = "make" if len(ruled_out.pins) != 1 else "makes"
    outcome = (
        f"{end} the outputs agree" if ruled_out.agrees else "do not make the outputs agree, though nothing is left"
    )
    return f"{ruled_out.path}: {count} to the CPU {outcome}; {_counted(ruled_out.compilations, 'compilation')}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
