"""What installed distributions bring by entry points of one group: listed by name, imported one by one when used.

A name that two distributions bring is used by neither. Whatever is wrong with one name spoils no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from nnadapter.errors import describe
from nnadapter.process.entry_points import distribution_of, named
from nnadapter.process.forking import new_re_lock

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PlugIn:
    """One entry point."""

    name: str
    target: str
    """`module:attribute`."""
    distribution: str
    """Name and version of the distribution that brings it."""
    problem: str = ""
    """Why it is not used, in a sentence with what to do; empty where nothing is known against it."""


class PlugIns(Generic[_Value]):
    """The entry points of one group, read when first asked for.

    Args:
        group: of the entry points.
        check: what is loaded, and its plug-in -> the same; raises ValueError if it is nothing of the kind.
        problem: what is wrong with a name, before anything is imported; empty if nothing is.
    """

    def __init__(
        self,
        group: str,
        check: Callable[[object, PlugIn], _Value],
        problem: Callable[[str], str] = lambda name: "",
    ) -> None:
        self._group, self._check, self._problem = group, check, problem
        self._lock = new_re_lock()
        self._found: Mapping[str, PlugIn] | None = None
        self._loaded: dict[str, _Value | str] = {}

    @property
    def all(self) -> Mapping[str, PlugIn]:
        """Every plug-in by name, sorted; nothing is imported."""
        with self._lock:
            if self._found is None:
                self._found = self._read()
            return self._found

    @property
    def is_read(self) -> bool:
        """Whether somebody has asked."""
        return self._found is not None

    def get(self, name: str) -> _Value | None:
        """Return what is brought under a name; None where nothing is, or where `problem_of` says what is wrong."""
        plug_in = self.all.get(name)
        if plug_in is None or plug_in.problem:
            return None
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._load(plug_in)
            loaded = self._loaded[name]
        return None if isinstance(loaded, str) else loaded

    def problem_of(self, name: str) -> str:
        """Return why what is brought under a name is not used; empty where it is, or where nothing is brought."""
        plug_in = self.all.get(name)
        if plug_in is None or plug_in.problem:
            return "" if plug_in is None else plug_in.problem
        self.get(name)
        loaded = self._loaded[name]
        return loaded if isinstance(loaded, str) else ""

    def distribution_of(self, name: str) -> str:
        """Name and version of the distribution that brings a name; empty where none does."""
        plug_in = self.all.get(name)
        return "" if plug_in is None else plug_in.distribution

    def _read(self) -> Mapping[str, PlugIn]:
        from importlib import metadata  # it takes as long as ten of our modules, and most sessions need it not

        plug_ins: dict[str, PlugIn] = {}
        for point in metadata.entry_points(group=self._group):
            plug_in = PlugIn(point.name, point.value, distribution_of(point), self._problem(point.name))
            existing_plug_in = plug_ins.get(point.name)
            if existing_plug_in is None:
                plug_ins[point.name] = plug_in
            elif (existing_plug_in.target, existing_plug_in.distribution) != (plug_in.target, plug_in.distribution):
                plug_ins[point.name] = _clash(existing_plug_in, plug_in)
        for name in [name for name, plug_in in plug_ins.items() if plug_in.problem]:
            plug_in = plug_ins[name]
            plug_ins[name] = PlugIn(name, plug_in.target, plug_in.distribution, self._told(plug_in, plug_in.problem))
        return dict(sorted(plug_ins.items()))

    def _load(self, plug_in: PlugIn) -> _Value | str:
        try:
            return self._check(named(plug_in.target), plug_in)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  importing a plug-in may raise anything; this is its border
            advice = "ask its vendor, install what is missing, or uninstall it"
            return self._told(plug_in, f"{describe(error)}; {advice}")

    def _told(self, plug_in: PlugIn, problem: str) -> str:
        return f"{plug_in.name!r} of {plug_in.distribution} ({self._group}) is not used: {problem}"


def _clash(existing_plug_in: PlugIn, other: PlugIn) -> PlugIn:
    brought = f"{existing_plug_in.target} of {existing_plug_in.distribution} and {other.target} of {other.distribution}"
    problem = f"two packages bring it, {brought}; uninstall one of them"
    return PlugIn(existing_plug_in.name, existing_plug_in.target, existing_plug_in.distribution, problem)
