"""Installed packages: versions, extras with their install commands, and plug-ins by entry points.

Each plug-in is imported on first use. If two distributions declare the same name, neither is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

import nnadapter
from nnadapter.errors import MissingExtraError, describe
from nnadapter.process.resources import new_re_lock
from nnadapter.records import dataclass, replace

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


_FORM, _OLDER = "dist-info", ("egg-info", "egg")


def own_version() -> str:
    """Return nnadapter's version, installed or not."""
    return nnadapter.__version__


def installed_version(distribution: str) -> str:
    """Return the version of a distribution; empty if it is not installed.

    Source: PyPA specification of installed projects.
    """
    target_name = _normalized(distribution)
    version = next((version for name, version in _scan_distributions() if name == target_name), "")
    if version:
        return version
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def installed_builds(distribution: str) -> str:
    """Return names and versions of a distribution and its variants, such as `onnxruntime-gpu`."""
    target_name, builds = _normalized(distribution), dict[str, str]()
    for name, version in _scan_distributions():
        if name == target_name or name.startswith(f"{target_name}_"):
            builds.setdefault(name, version)
    return ", ".join(f"{name} {version or installed_version(name)}" for name, version in sorted(builds.items()))


def _scan_distributions() -> Iterator[tuple[str, str]]:
    """Yield the normalized name and version of every distribution; the version is empty for older metadata formats."""
    for folder in (path for path in sys.path if isinstance(path, str)):
        with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
            for entry in entries:
                stem, _, form = entry.name.rpartition(".")
                if form == _FORM or form in _OLDER:
                    name, _, version = stem.partition("-")
                    yield _normalized(name), "" if form in _OLDER else version


def _normalized(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


EXTRAS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "demo": ("pillow", "PIL"),
        "latency": ("scipy", "scipy"),
        "openvino": ("openvino", "openvino"),
        "qnn": ("onnxruntime-qnn", "onnxruntime_qnn"),
        "xla": ("jax", "jax"),
        "ray": ("ray", "ray"),
    }
)
"""Extra -> required package, and its module."""


def has_extra(extra: str) -> bool:
    """Return whether the package of an extra is installed, without importing it."""
    return find_spec(EXTRAS[extra][1]) is not None


def missing_extra(extra: str, feature: str, kind: type[MissingExtraError] = MissingExtraError) -> MissingExtraError:
    """Return an error with the install command of an extra that `feature` needs."""
    package = EXTRAS[extra][0]
    return kind(
        f"{feature} needs the package {package}, which is not installed; run: pip install 'nnadapter[{extra}]'",
        extra=extra,
        package=package,
    )


def require_extra(extra: str, feature: str) -> None:
    """Raise MissingExtraError if the package of an extra is missing."""
    if not has_extra(extra):
        raise missing_extra(extra, feature)


def named(target: str) -> object:
    """Import the object that an entry point names (PyPA: `module:attribute [extra]`), ignoring extras."""
    from importlib import import_module

    module_name, _, attribute = target.partition("[")[0].strip().partition(":")
    value: object = import_module(module_name.strip())
    for name in filter(None, attribute.strip().split(".")):
        value = getattr(value, name)
    return value


def distribution_of(point: EntryPoint) -> str:
    """Return name and version of an entry point's distribution."""
    return f"{point.dist.name} {point.dist.version}" if point.dist and point.dist.name else "an unknown distribution"


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PlugIn:
    """Entry point of an installed package that extends nnadapter."""

    name: str
    target: str
    distribution: str
    problem: str = ""
    """Reason why the plug-in is not used, with advice."""


class PlugIns(Generic[_Value]):
    """Entry points of one group, read on first access.

    Args:
        check: converts a loaded object, or raises ValueError.
        problem: returns the defect of an invalid name, before import.
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
        with self._lock:
            if self._found is None:
                self._found = self._read()
            return self._found

    def get(self, name: str) -> _Value | None:
        """Return the plug-in of this name; None if missing or broken, see `problem_of`."""
        plug_in = self.all.get(name)
        if plug_in is None or plug_in.problem:
            return None
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._load(plug_in)
            loaded = self._loaded[name]
        return None if isinstance(loaded, str) else loaded

    def problem_of(self, name: str) -> str:
        plug_in = self.all.get(name)
        if plug_in is None or plug_in.problem:
            return "" if plug_in is None else plug_in.problem
        self.get(name)
        loaded = self._loaded[name]
        return loaded if isinstance(loaded, str) else ""

    def distribution_of(self, name: str) -> str:
        plug_in = self.all.get(name)
        return "" if plug_in is None else plug_in.distribution

    def _read(self) -> Mapping[str, PlugIn]:
        from importlib import metadata

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
            plug_ins[name] = replace(plug_in, problem=self._problem_text(plug_in, plug_in.problem))
        return dict(sorted(plug_ins.items()))

    def _load(self, plug_in: PlugIn) -> _Value | str:
        try:
            return self._check(named(plug_in.target), plug_in)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  importing a plug-in may raise anything
            advice = "ask its vendor, install what is missing, or uninstall it"
            return self._problem_text(plug_in, f"{describe(error)}; {advice}")

    def _problem_text(self, plug_in: PlugIn, problem: str) -> str:
        return f"{plug_in.name!r} of {plug_in.distribution} ({self._group}) is not used: {problem}"


def _clash(existing_plug_in: PlugIn, other: PlugIn) -> PlugIn:
    brought = f"{existing_plug_in.target} of {existing_plug_in.distribution} and {other.target} of {other.distribution}"
    return replace(existing_plug_in, problem=f"two packages provide it, {brought}; uninstall one of them")
