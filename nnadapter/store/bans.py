"""Bans: parts of models that a device does not get again, stored in the cache folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from nnadapter.drivers.capability import OptionValues
from nnadapter.drivers.interface import SegmentModel
from nnadapter.errors import NNAdapterError
from nnadapter.files.atomic_files import replace_file
from nnadapter.ir.text import NotCanonicalError
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass
from nnadapter.store.context import form_of
from nnadapter.store.folder import text_part, warn_unwritten
from nnadapter.store.keys import of_device

FOLDER = "bans"
_LASTING_SECONDS = 7 * 24 * 3600
_MOST = 256
_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """Part of a model that a device does not get again, because the device failed on this part."""

    device: str
    driver: str
    key: str
    form: str
    operations: str
    inputs: str
    nodes: tuple[str, ...]
    stage: str
    """`compile`, `run` or `accuracy`."""
    is_size: bool = False
    """True if the segment is too large and is cut in two; no node is at fault."""
    reason: str
    since: float
    """Unix time."""
    until: float
    reproducer: str = ""

    @property
    def text(self) -> str:
        until = f"until {day(self.until)}"
        shown = f"; {self.reproducer} reproduces it" if self.reproducer else ""
        return f"banned since {day(self.since)}, {until}, because {self.reason}{shown}"


class DeviceBans:
    """Bans of one device in a session, stored in the cache folder if there is one. Thread-safe."""

    def __init__(
        self, device: str, options: OptionValues, folder: Path | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._device, self._options, self._clock = device, dict(options), clock
        self._folder = None if folder is None else folder / FOLDER
        self._lock = new_lock()

    def __bool__(self) -> bool:
        return bool(self._by_form)

    @property
    def all(self) -> tuple[Ban, ...]:
        timestamp = self._clock()
        return tuple(ban for ban in list(self._by_form.values()) if ban.until > timestamp)

    @property
    def of_nodes(self) -> bool:
        """True if a ban has a reason other than the size of a segment."""
        return any(not ban.is_size for ban in self.all)

    def find(self, model: SegmentModel) -> Ban | None:
        """Return the valid ban of a model (ONNX or adapter IR, as the device requires), or None."""
        if not self._by_form:
            return None
        form = _form(model)
        ban = None if form is None else self._by_form.get(form[0])
        return ban if ban is not None and ban.until > self._clock() else None

    def add(
        self,
        model: SegmentModel,
        nodes: Sequence[str],
        reason: str,
        stage: str,
        *,
        is_size: bool = False,
        reproducer: str = "",
    ) -> Ban | None:
        """Ban a model (ONNX or adapter IR, as the device requires), usually of one node; store and return the ban.

        Returns None if the model has no canonical form, or if there are too many bans. `reason` is a clause to follow
        "because".
        """
        form, timestamp = _form(model), self._clock()
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
            reason=reason,
            since=timestamp,
            until=timestamp + _LASTING_SECONDS,
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
        prefix, timestamp = f"{self._key[:_DIGITS]}.", self._clock()
        bans = (_read(path) for path in _files(self._folder) if path.name.startswith(prefix))
        return {ban.form: ban for ban in bans if ban is not None and ban.key == self._key and ban.until > timestamp}

    @cached_property
    def _key(self) -> str:
        parts = of_device(self._device)
        digests = [parts["device"].digest, parts["driver"].digest, text_part(self._options).digest]
        return sha256("\n".join(digests).encode()).hexdigest()

    @cached_property
    def _driver(self) -> str:
        words = of_device(self._device)["driver"].words
        return words.get("version") or words.get("distribution") or ""


def stored_bans(folder: Path) -> list[Ban]:
    """Return the valid bans in a cache folder, newest first."""
    bans = (_read(path) for path in _files(folder / FOLDER))
    return sorted((ban for ban in bans if ban is not None), key=lambda ban: -ban.since)


def clear_bans(folder: Path) -> int:
    """Remove all bans from a cache folder; return their number."""
    removed = 0
    for path in _files(folder / FOLDER):
        with suppress(OSError):
            path.unlink()
            removed += 1
    return removed


def day(seconds: float) -> str:
    """Return the local date of a Unix time in ISO format."""
    return datetime.fromtimestamp(seconds).astimezone().date().isoformat()


def _form(model: SegmentModel) -> tuple[str, str, str] | None:
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
    try:
        data = json.loads(path.read_text())
        return _ban(data)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _ban(data: Mapping[str, object]) -> Ban:
    values = {field.name: data[field.name] for field in fields(Ban)}
    for name, kind in _KINDS.items():
        if not isinstance(values[name], kind):
            raise TypeError(name)
    return Ban(**{**values, "nodes": tuple(map(str, values["nodes"]))})  # type: ignore[arg-type, call-overload]


_TEXTS = ("device", "driver", "key", "form", "operations", "inputs", "stage", "reason", "reproducer")
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(_TEXTS, str), "nodes": list, "is_size": bool, "since": (int, float), "until": (int, float),
}  # fmt: skip
