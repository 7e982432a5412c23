"""Cache folder of the user, and names of the calibration files in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path


def cache_folder() -> Path:
    """The folder of everything that is kept: NNADAPTER_CACHE_DIR, else the platform's; it need not exist."""
    named = os.environ.get("NNADAPTER_CACHE_DIR", "").strip()
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("nnadapter", False, opinion=False)


def calibration_file(device: str, options: Mapping[str, object]) -> Path:
    """Where the calibration of a device under those options that affect its speed is kept."""
    digest = sha256(json.dumps(dict(sorted(options.items()))).encode()).hexdigest()[:16]
    return _folder() / f"{_prefix(device)}{digest}.json"


def calibrations_of(device: str) -> Sequence[Path]:
    """The files of a device, whatever its options."""
    return _list_files(_prefix(device))


def calibrations_of_driver(device: str) -> Sequence[Path]:
    """The files of all devices of a device's driver, and of drivers whose names go on behind its name."""
    return _list_files(f"{_written(device.partition(':')[0])}-")


def _list_files(prefix: str) -> Sequence[Path]:
    try:
        return sorted(_folder().glob(f"{prefix}*.json"))
    except OSError:  # what cannot be a folder holds nothing
        return ()


def _folder() -> Path:
    return cache_folder() / "calibrations"


def _prefix(device: str) -> str:
    """How the names of a device's calibrations begin."""
    return f"{_written(device)}-{sha256(device.encode()).hexdigest()[:8]}-"


def _written(name: str) -> str:
    """A name as it stands in that of a file."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
