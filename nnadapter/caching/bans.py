"""What a device is not given any more: nodes and segments that its driver failed, by their form, for some days.

A ban holds for one device, with its options, at one version of its driver, and for every model that has such a part:
operations, attributes, data types and shapes count, names and weights do not. In a session with a cache bans lie in its
folder, one small file each, and other sessions find them; without one they last as long as the session. A ban that has
expired, that is damaged or that was written for another driver is not used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from nnadapter.caching.fingerprints import of_device
from nnadapter.caching.forms import form_of
from nnadapter.caching.key import text_part
from nnadapter.caching.outcome import warn_unwritten
from nnadapter.drivers.capability import OptionValues
from nnadapter.drivers.interface import SegmentModel
from nnadapter.errors import NNAdapterError
from nnadapter.files.atomic_files import replace_file
from nnadapter.ir.canonical import NotCanonicalError
from nnadapter.process.forking import new_lock

FOLDER = "bans"
"""In that of the cache."""
_LASTING_SECONDS = 7 * 24 * 3600
_MOST = 256
"""Bans of one device at one version; a driver that fails more is not made better by more of them."""
_DIGITS = 16
"""Of a digest in a file's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """A part of a model that a device is not given."""

    device: str
    driver: str
    """The driver's version, as it says it."""
    key: str
    """Digest of device, driver and options."""
    form: str
    """Digest of the part's canonical form."""
    operations: str
    """Of the part, in words."""
    inputs: str
    """Their shapes, in words."""
    nodes: tuple[str, ...]
    """Names of the nodes where it was found."""
    stage: str
    """Where it failed: `compile`, `run` or `accuracy`."""
    is_size: bool = False
    """Not the nodes are at fault but that they are so many at once: such a segment is cut in two."""
    reason: str
    since: float
    """Seconds since 1970."""
    until: float
    reproducer: str = ""
    """A file or command that shows it; empty where there is none."""

    @property
    def text(self) -> str:
        """Since when and why, in one sentence."""
        until = f"until {day(self.until)}"
        shown = f"; {self.reproducer} shows it" if self.reproducer else ""
        return f"banned since {day(self.since)}, {until}, because {self.reason}{shown}"


class DeviceBans:
    """The bans of one device of a session. Usable from many threads at once.

    Args:
        device: its name.
        options: of its context.
        folder: of the session's cache; None where it has none.
        clock: seconds since 1970.
    """

    def __init__(
        self, device: str, options: OptionValues, folder: Path | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._device, self._options, self._clock = device, dict(options), clock
        self._folder = None if folder is None else folder / FOLDER
        self._lock = new_lock()

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._by_form)

    @property
    def all(self) -> tuple[Ban, ...]:
        """Those that hold now."""
        now = self._clock()
        return tuple(ban for ban in list(self._by_form.values()) if ban.until > now)

    @property
    def of_nodes(self) -> bool:
        """Whether nodes are banned, and not only segments for their size."""
        return any(not ban.is_size for ban in self.all)

    def find(self, model: SegmentModel) -> Ban | None:
        """Return the ban of a model in the form that its device takes; None where there is none that holds now."""
        if not self._by_form:
            return None
        form = _form(model)
        ban = None if form is None else self._by_form.get(form[0])
        return ban if ban is not None and ban.until > self._clock() else None

    def add(
        self,
        model: SegmentModel,
        nodes: Sequence[str],
        why: str,
        stage: str,
        *,
        is_size: bool = False,
        reproducer: str = "",
    ) -> Ban | None:
        """Ban what a model is, from now on.

        Args:
            model: one node, say, in the form that the device takes.
            nodes: their names where it was found.
            why: what happened, a clause.
            stage: `compile`, `run` or `accuracy`.
            is_size: see `Ban`.
            reproducer: see `Ban`.

        Returns:
            The ban; None where the model has no form that could be found again, or there are too many bans.
        """
        form, now = _form(model), self._clock()
        if form is None:
            return None
        ban = Ban(
            device=self._device,
            driver=self._driver,
            key=self._key,
            form=form[0],
            operations=form[1],
            inputs=form[2],
            nodes=tuple(nodes),
            stage=stage,
            is_size=is_size,
            reason=why,
            since=now,
            until=now + _LASTING_SECONDS,
            reproducer=reproducer,
        )
        with self._lock:
            if ban.form not in self._by_form and len(self._by_form) >= _MOST:
                return None
            self._by_form[ban.form] = ban
        if self._folder is not None:
            _write(self._folder, ban)
        return ban

    @cached_property
    def _by_form(self) -> dict[str, Ban]:
        if self._folder is None or not self._folder.is_dir():
            return {}
        prefix, now = f"{self._key[:_DIGITS]}.", self._clock()
        found = (_read(path) for path in _files(self._folder) if path.name.startswith(prefix))
        return {ban.form: ban for ban in found if ban is not None and ban.key == self._key and ban.until > now}

    @cached_property
    def _key(self) -> str:
        parts = of_device(self._device)
        said = [parts["device"].digest, parts["driver"].digest, text_part(self._options).digest]
        return sha256("\n".join(said).encode()).hexdigest()

    @cached_property
    def _driver(self) -> str:
        words = of_device(self._device)["driver"].words
        return words.get("version") or words.get("distribution") or ""


def stored_bans(folder: Path) -> list[Ban]:
    """Return the bans in the folder of a cache, of any device and driver, the newest first; damaged ones are left out.

    Args:
        folder: of the cache.
    """
    found = (_read(path) for path in _files(folder / FOLDER))
    return sorted((ban for ban in found if ban is not None), key=lambda ban: -ban.since)


def clear_bans(folder: Path) -> int:
    """Remove every ban from the folder of a cache, damaged ones too; return how many."""
    removed = 0
    for path in _files(folder / FOLDER):
        with suppress(OSError):
            path.unlink()
            removed += 1
    return removed


def day(seconds: float) -> str:
    """Return a date as people write it."""
    return datetime.fromtimestamp(seconds).astimezone().date().isoformat()


def _form(model: SegmentModel) -> tuple[str, str, str] | None:
    """The digest of a model's form, its operations and its inputs."""
    try:
        form = form_of(model)
    except (NotCanonicalError, NNAdapterError, OSError, TypeError, ValueError):
        return None
    return sha256(f"{form.structure}\n{form.shapes}".encode()).hexdigest(), form.operations, form.inputs


def _files(folder: Path) -> Iterable[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except OSError:
        return []


def _write(folder: Path, ban: Ban) -> None:
    path = folder / f"{ban.key[:_DIGITS]}.{ban.form[:_DIGITS]}.json"
    text = json.dumps(asdict(ban), indent=1)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, lambda file: file.write(text.encode()))
    except OSError as error:
        warn_unwritten(f"{str(folder)!r} cannot be written: {error.strerror or error}")


def _read(path: Path) -> Ban | None:
    """The ban in a file; None where there is none that can be used."""
    try:
        told = json.loads(path.read_text())
        return _ban(told)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _ban(told: Mapping[str, object]) -> Ban:
    values = {field.name: told[field.name] for field in fields(Ban)}
    for name, kind in _KINDS.items():
        if not isinstance(values[name], kind):
            raise TypeError(name)
    return Ban(**{**values, "nodes": tuple(map(str, values["nodes"]))})  # type: ignore[arg-type, call-overload]


_TEXTS = ("device", "driver", "key", "form", "operations", "inputs", "stage", "reason", "reproducer")
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(_TEXTS, str), "nodes": list, "is_size": bool, "since": (int, float), "until": (int, float),
}  # fmt: skip
