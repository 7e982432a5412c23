"""Atomic file writing, and the user's cache folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from errno import EINVAL, EISDIR
from hashlib import sha256
from os import strerror
from pathlib import Path
from stat import S_IMODE
from typing import BinaryIO

from nnadapter.errors import InvalidOptionError

_OPEN_FILES = Path("/proc/self/fd")


def is_special(path: Path) -> bool:
    """Return True for an existing device or pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


def check_writable(path: Path, advice: str = "give another path", *, folder: bool = False) -> None:
    """Raise InvalidOptionError unless the file `path` can be written; with `folder`, any file in the folder `path`."""
    if not folder and is_special(path):
        return
    parents = path.absolute().parents
    place = next(ancestor for ancestor in (path, *parents) if ancestor.exists()) if folder else path.resolve().parent
    try:
        if path.is_dir() and not folder:
            raise IsADirectoryError(EISDIR, strerror(EISDIR))
        from tempfile import TemporaryFile  # imports random, which is not needed otherwise

        with TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise InvalidOptionError(f"{str(path)!r} cannot be written: {error.strerror or error}; {advice}") from error


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically, a device or pipe directly. Raises OSError."""
    if is_special(path):
        with path.open("wb") as file:
            write(file)
    else:
        replace_file(path.resolve(), write)


def replace_file(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace `target` atomically, with its permissions.

    Where possible, the file has no name until complete, so that a killed process leaves nothing. Raises OSError.
    """
    from secrets import token_hex

    if is_special(target):
        raise OSError(EINVAL, "a device or a pipe cannot be replaced by a file")
    write = _with_permissions_of(target, write)
    temp_path = target.with_name(f".{target.name[:100]}.{token_hex(4)}.part")
    try:
        if not _wrote_nameless(temp_path, write):
            with temp_path.open("xb") as file:
                write(file)
        temp_path.replace(target)
    finally:
        temp_path.unlink(missing_ok=True)


def _with_permissions_of(target: Path, write: Callable[[BinaryIO], object]) -> Callable[[BinaryIO], object]:
    if not target.exists() or not hasattr(os, "fchmod"):
        return write
    mode = S_IMODE(target.stat().st_mode)

    def written(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), mode)
        write(file)

    return written


def _wrote_nameless(path: Path, write: Callable[[BinaryIO], object]) -> bool:
    """Write a file, linked to `path` when complete; return False if unsupported."""
    if not hasattr(os, "O_TMPFILE") or not _OPEN_FILES.is_dir():
        return False
    try:
        file = open(path.parent, "wb", opener=_open_nameless)  # noqa: SIM115
    except OSError:  # unsupported by the file system; other errors recur in the fallback
        return False
    with file:
        write(file)
        file.flush()
        # link() would link the symlink itself; with a folder argument, though unused, Python calls linkat()
        os.link(_OPEN_FILES / str(file.fileno()), path, src_dir_fd=file.fileno())
    return True


def _open_nameless(folder: str, flags: int) -> int:
    return os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666)


def cache_folder() -> Path:
    """Return NNADAPTER_CACHE_DIR or the platform's cache folder; it need not exist."""
    named = os.environ.get("NNADAPTER_CACHE_DIR", "").strip()
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("nnadapter", False, opinion=False)


def calibration_file(device: str, options: Mapping[str, object]) -> Path:
    """Return the calibration file of a device and options."""
    digest = sha256(json.dumps(dict(sorted(options.items()))).encode()).hexdigest()[:16]
    return _folder() / f"{_prefix(device)}{digest}.json"


def calibrations_of(device: str) -> Sequence[Path]:
    """Return all calibration files of a device."""
    return _list_files(_prefix(device))


def calibrations_of_driver(device: str) -> Sequence[Path]:
    """Return all calibration files of a device's driver, and of drivers whose names start with its name and `-`."""
    return _list_files(f"{_written(device.partition(':')[0])}-")


def _list_files(prefix: str) -> Sequence[Path]:
    try:
        return sorted(_folder().glob(f"{prefix}*.json"))
    except OSError:  # not a folder, so empty
        return ()


def _folder() -> Path:
    return cache_folder() / "calibrations"


def _prefix(device: str) -> str:
    return f"{_written(device)}-{sha256(device.encode()).hexdigest()[:8]}-"


def _written(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
