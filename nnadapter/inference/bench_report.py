"""What a bench says: seconds, and what can be said of one beside another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from nnadapter.drivers.selection import HOSTS
from nnadapter.reports.report import PartitionReport
from nnadapter.reports.units import duration

SESSION = "session"
"""What the session is called in tables."""
_FEW = 5
"""Rounds that are too few to tell two apart."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A middle, and the quarters below and above it."""

    low: float
    middle: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """As plain data."""
        return {"low": self.low, "middle": self.middle, "high": self.high}


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """A session or an engine."""

    name: str
    version: str
    load_seconds: float | None = None
    """Reading and compiling, imports of an engine left out."""
    first_seconds: float | None = None
    """The first run, with compiling where it was not done before."""
    turns: tuple[float, ...] = ()
    """Seconds of a run, round by round."""
    differing: Mapping[str, float] = field(default_factory=dict)
    """Outputs that are not what the session gave -> the largest difference."""
    failure: str = ""
    """Why an engine does not run the model."""

    @property
    def spread(self) -> Spread | None:
        """Of the turns."""
        return _spread(self.turns) if self.turns else None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "version": self.version,
            "load_seconds": self.load_seconds,
            "first_seconds": self.first_seconds,
            "seconds": None if self.spread is None else self.spread.to_dict(),
            "turns": list(self.turns),
            "differing": dict(self.differing),
            "failure": self.failure,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """A session beside engines by themselves."""

    devices: tuple[str, ...]
    nodes: Mapping[str, int]
    """Device -> how many nodes ran there in the last run."""
    failures: tuple[str, ...]
    """What fell back from a device that had taken it."""
    session: EngineTiming
    peers: tuple[EngineTiming, ...]
    report: PartitionReport
    """Of the session."""

    @property
    def ran(self) -> bool:
        """Nodes ran on the devices in question, and nothing fell back, so that the times are theirs."""
        target_devices = [device for device in self.devices if device not in HOSTS] or self.devices
        return any(self.nodes.get(device, 0) for device in target_devices) and not self.failures

    def over(self, peer: EngineTiming) -> Spread | None:
        """The session's time over an engine's, of the ratios of all rounds; None where it does not run the model."""
        if not peer.turns:
            return None
        return _spread(
            [session_turn / other for session_turn, other in zip(self.session.turns, peer.turns, strict=True)]
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data: `over` of each peer is the session's time over its own."""
        return {
            "devices": list(self.devices),
            "nodes": dict(self.nodes),
            "failures": list(self.failures),
            "ran": self.ran,
            "session": self.session.to_dict(),
            "peers": [
                {**peer.to_dict(), "over": None if (over := self.over(peer)) is None else over.to_dict()}
                for peer in self.peers
            ],
        }

    def __str__(self) -> str:
        """What it comes to, a table, and what to know."""
        return "\n".join([*self._words(), *self._table(), *self._notes()])

    def _words(self) -> Iterator[str]:
        for peer in self.peers:
            over = self.over(peer)
            yield peer.failure if over is None else f"{SESSION} over {peer.name}: {verdict(over, len(peer.turns))}"
        counts = ", ".join(f"{count} on {device}" for device, count in self.nodes.items() if count)
        yield f"devices {', '.join(self.devices)}; nodes: {counts or 'none, as all results were known before the run'}"

    def _table(self) -> Iterator[str]:
        rows = [("", "load", "first run", "run", "half of the rounds", "version"), *map(_row, self._all)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        yield from (
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _notes(self) -> Iterator[str]:
        yield from (f"fell back: {failure}" for failure in self.failures)
        for peer in self.peers:
            for output, off in peer.differing.items():
                yield f"{peer.name} gives another {output!r}, off by {off:.3g} at most"

    @property
    def _all(self) -> tuple[EngineTiming, ...]:
        return self.session, *self.peers


def verdict(over: Spread, rounds: int) -> str:
    """In words, what ratios of so many rounds say."""
    low, middle, high = map(_ratio, (over.low, over.middle, over.high))
    if rounds < _FEW:
        return f"{middle} times its time, by {rounds} of the {_FEW} rounds that it takes to tell"
    if over.low <= 1 <= over.high:
        return f"{middle} times its time, {low} to {high}: not told apart by these rounds"
    return f"{middle} times its time, {low} to {high} in half of the rounds"


def _ratio(number: float) -> str:
    return f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"


def _row(timed: EngineTiming) -> tuple[str, ...]:
    spread = timed.spread
    half = "" if spread is None else f"{duration(spread.low)} to {duration(spread.high)}"
    starts = ("" if seconds is None else duration(seconds) for seconds in (timed.load_seconds, timed.first_seconds))
    return (timed.name, *starts, "" if spread is None else duration(spread.middle), half, timed.version)


def _spread(numbers: Sequence[float]) -> Spread:
    if len(numbers) == 1:
        return Spread(*numbers, *numbers, *numbers)
    low, _, high = quantiles(numbers, n=4, method="inclusive")
    return Spread(low, median(numbers), high)
