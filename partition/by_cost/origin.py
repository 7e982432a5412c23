"""What found a placement: a kind with its parameters, in words only where a person reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class OriginKind(StrEnum):
    """How a placement was found. Values are written into files, and stay."""

    ALL_ON = "all_on"
    """Everything on one device; its name."""
    EVERYTHING_SUPPORTED = "everything_supported"
    """What others than the host take on the first of them, the rest on the host."""
    ENUMERATION = "enumeration"
    CUT = "cut"
    CUT_ALONG_PATHS = "cut_along_paths"
    """How many paths."""
    CUT_WITH_SHARES = "cut_with_shares"
    """The part of a launch that is added to every value that crosses."""
    CUT_WITH_RETURNS = "cut_with_returns"
    """Which of the cuts."""
    CHEAPEST_DEVICES = "cheapest_devices"
    PAIR = "pair"
    """The names of both devices."""
    SEARCH = "search"
    PAIRS_MOVED = "pairs_moved"
    ATOMS_MOVED = "atoms_moved"
    MOVED_ALIKE = "moved_alike"
    ONE_REPEAT = "one_repeat"
    """How many repeats there are."""
    ONE_REPEAT_PER_RUN = "one_repeat_per_run"
    """How many runs of repeats there are."""
    REPEATS_ALIKE = "repeats_alike"


@dataclass(frozen=True, slots=True)
class Origin:
    """What found a placement."""

    kind: OriginKind
    parameters: tuple[str | int | float, ...] = ()
    """What `OriginKind` says of each kind."""
    base: Origin | None = None
    """What it began with, for those that go on from another placement."""

    def __post_init__(self) -> None:
        """Refuse parameters that a kind does not have."""
        try:
            str(self)
        except (IndexError, ValueError) as error:
            raise ValueError(f"{self.kind} has other parameters than {self.parameters}") from error

    def __str__(self) -> str:
        """In words."""
        return _WORDS[self.kind].format(*self.parameters, base=self.base)


def all_on(device: str) -> Origin:
    """Return the origin of everything on one device."""
    return Origin(OriginKind.ALL_ON, (device,))


_WORDS: Mapping[OriginKind, str] = {
    OriginKind.ALL_ON: "all on {}",
    OriginKind.EVERYTHING_SUPPORTED: "everything supported",
    OriginKind.ENUMERATION: "enumeration",
    OriginKind.CUT: "cut without launches",
    OriginKind.CUT_ALONG_PATHS: "cut along {} paths",
    OriginKind.CUT_WITH_SHARES: "cut with {:g} launches per crossing",
    OriginKind.CUT_WITH_RETURNS: "cut {} with returns",
    OriginKind.CHEAPEST_DEVICES: "cheapest device per atom",
    OriginKind.PAIR: "{} and {}",
    OriginKind.SEARCH: "search from {base}",
    OriginKind.PAIRS_MOVED: "moves from {base}",
    OriginKind.ATOMS_MOVED: "{base}, atoms moved",
    OriginKind.MOVED_ALIKE: "{base}, all moved alike",
    OriginKind.ONE_REPEAT: "one of {} repeats: {base}",
    OriginKind.ONE_REPEAT_PER_RUN: "one repeat of each of {} runs: {base}",
    OriginKind.REPEATS_ALIKE: "repeats alike",
}
