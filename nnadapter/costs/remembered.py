"""Choices that were measured, remembered by what they were measured for, so that they are paid for once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from nnadapter.costs.stored import Entry, read_entry, write_entry
from nnadapter.drivers.capability import OptionValue
from nnadapter.errors import StoredFileError
from nnadapter.files.cache_folder import cache_folder

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice:
    """A device as a measurement saw it."""

    name: str
    version: str
    """Of its driver."""
    options: Mapping[str, OptionValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChoice:
    """The plan that was fastest."""

    candidate: str
    """Its name among the candidates."""
    placement: Mapping[str, str]
    """Name of every node -> device."""
    seconds: Mapping[str, float]
    """Of every candidate that was timed, by name."""


def choice_key(
    model_digest: str,
    devices: Sequence[MeasuredDevice],
    shapes: Mapping[str, Sequence[int]],
    version: str,
    constraints: str = "",
) -> str:
    """Return what a choice is remembered by: the model's contents, devices in order, input shapes, our own version.

    Args:
        model_digest: of the model's bytes, weights included.
        devices: in the person's order of preference.
        shapes: input name -> dimensions.
        version: of nnadapter.
        constraints: what else a person says of placement, in words.
    """
    told = {
        "model": model_digest,
        "devices": [[each.name, each.version, _plain(each.options)] for each in devices],
        "shapes": {name: list(map(int, shapes[name])) for name in sorted(shapes)},
        "version": version,
        "constraints": constraints,
    }
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def remember(key: str, choice: MeasuredChoice) -> Path:
    """Keep a choice and return its file. Of sessions that do so at once, one whole file stays.

    Raises:
        StoredFileError: it cannot be written.
    """
    devices = list(dict.fromkeys(choice.placement.values()))
    place = {device: position for position, device in enumerate(devices)}
    file = _file(key)
    write_entry(
        file,
        {
            "format_version": FORMAT_VERSION,
            "key": key,
            "candidate": choice.candidate,
            "seconds": dict(choice.seconds),
            "devices": devices,
            "placement": {node: place[device] for node, device in choice.placement.items()},
        },
    )
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


def _read(file: Path, key: str) -> MeasuredChoice:
    whole = read_entry(file, "the measured choice", "measure again")
    version = whole.mapping().get("format_version")
    if version is None:
        whole.refuse("it says no format_version, so it is none")
    version.equal(FORMAT_VERSION)
    entries = whole.members({"format_version", "key", "candidate", "seconds", "devices", "placement"})
    entries["key"].equal(key)
    devices = [each.text() for each in entries["devices"].items()]
    return MeasuredChoice(
        candidate=entries["candidate"].text(),
        placement={node: _device(entry, devices) for node, entry in entries["placement"].mapping().items()},
        seconds={name: entry.seconds() for name, entry in entries["seconds"].mapping().items()},
    )


def _device(entry: Entry, devices: Sequence[str]) -> str:
    position = entry.whole()
    if position >= len(devices):
        entry.refuse(f"it is {position}, expected a position in the list of {len(devices)} devices")
    return devices[position]


def _file(key: str) -> Path:
    return cache_folder() / "measured" / f"{key}.json"


def _plain(options: Mapping[str, OptionValue]) -> dict[str, Any]:
    return {name: list(each) if isinstance(each, tuple) else each for name, each in options.items()}
