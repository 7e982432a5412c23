"""Cache of placements that were chosen by measuring, by the model and devices they were measured for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, to_builtins

from nnadapter.costs.calibration import read_stored, write_stored
from nnadapter.costs.work import Seconds
from nnadapter.drivers.capability import OptionValue
from nnadapter.errors import StoredFileError
from nnadapter.files.cache_folder import cache_folder
from nnadapter.files.documents import FileKind
from partition.by_cost.pricing import Origin

CHOICES_FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice:
    """A device as a measurement saw it."""

    name: str
    version: str
    """Of its driver."""
    options: Mapping[str, OptionValue]


class MeasuredCandidate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A placement that was timed."""

    origin: Origin
    """What found it."""
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChoice:
    """The plan that was taken."""

    placement: Mapping[str, str]
    """Name of every node -> device."""
    timed: tuple[MeasuredCandidate, ...]
    """Every candidate that was timed, the one taken first."""


def choice_key(
    model_digest: str,
    devices: Sequence[MeasuredDevice],
    shapes: Mapping[str, Sequence[int]],
    version: str,
    constraints: str = "",
    machine: str = "",
) -> str:
    """Return what a choice is remembered by: model contents, devices in order, input shapes, machine, our own version.

    Args:
        model_digest: of the model's bytes, weights included.
        devices: in the person's order of preference.
        shapes: input name -> dimensions.
        version: of nnadapter.
        constraints: what else a person says of placement, in words.
        machine: and its threads, in words.
    """
    key_fields = {
        "model": model_digest,
        "devices": [[device.name, device.version, dict(device.options)] for device in devices],
        "shapes": {name: list(map(int, shapes[name])) for name in sorted(shapes)},
        "version": version,
        "constraints": constraints,
        "machine": machine,
    }
    return sha256(json.dumps(key_fields, sort_keys=True).encode()).hexdigest()


def remember(key: str, choice: MeasuredChoice) -> Path:
    """Keep a choice and return its file. Of sessions that do so at once, one whole file stays.

    Raises:
        StoredFileError: it cannot be written.
    """
    devices = list(dict.fromkeys(choice.placement.values()))
    place = {device: position for position, device in enumerate(devices)}
    file = _file(key)
    document = _Document(
        key=key,
        timed=choice.timed,
        devices=tuple(devices),
        placement={node: place[device] for node, device in choice.placement.items()},
    )
    write_stored(file, {**_CHOICES_FILE.header, **to_builtins(document)})
    return file


def recall(key: str) -> tuple[MeasuredChoice | None, str]:
    """Return the choice that was kept, and a note: empty, or why a file that is there is not used.

    A file that cannot be used costs a new measurement and nothing else, so it is a note and no error.
    """
    try:
        return _read(_file(key), key), ""
    except FileNotFoundError:
        return None, ""
    except StoredFileError as error:
        return None, f"{error}; it counts as not measured"


def forget(key: str) -> None:
    """Delete what was kept, if there is something and it can be deleted."""
    with suppress(OSError):
        _file(key).unlink(missing_ok=True)


class _Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in the file beside its format."""

    key: str
    timed: Annotated[tuple[MeasuredCandidate, ...], Meta(min_length=1)]
    devices: tuple[str, ...]
    placement: Mapping[str, Annotated[int, Meta(ge=0)]]
    """Node -> position of its device."""


_CHOICES_FILE = FileKind(
    name="measured choice",
    contents=_Document,
    error=StoredFileError,
    advice="measure again",
    header={"format_version": CHOICES_FORMAT_VERSION},
)


def _read(file: Path, key: str) -> MeasuredChoice:
    document = read_stored(_CHOICES_FILE, file)
    if document.key != key:
        _CHOICES_FILE.refuse(f"expected {key!r}, got {document.key!r}; {_CHOICES_FILE.advice}", str(file), ("key",))
    for node, position in document.placement.items():
        if position >= len(document.devices):
            problem = f"expected a position in the list of {len(document.devices)} devices, got {position}"
            _CHOICES_FILE.refuse(f"{problem}; {_CHOICES_FILE.advice}", str(file), ("placement", node))
    return MeasuredChoice(
        placement={node: document.devices[position] for node, position in document.placement.items()},
        timed=document.timed,
    )


def _file(key: str) -> Path:
    return cache_folder() / "measured" / f"{key}.json"
