"""Atomic file writing: a file is complete or not there; and the user's cache folder."""

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
"""The files that a process of Linux has open, by links to them."""


def is_special(path: Path) -> bool:
    """Whether something stands at a path that is neither a file nor a folder: a device, a pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


def check_writable(path: Path, advice: str = "give another path", *, folder: bool = False) -> None:
    """Refuse a path before the work is done whose results are to lie there.

    Args:
        path: of a file, or with `folder` of a folder for files, which need not exist.
        advice: what to do else.
        folder: see `path`.

    Raises:
        InvalidOptionError: nothing can be written there.
    """
    if not folder and is_special(path):
        return  # written to directly
    parents = path.absolute().parents
    place = next(ancestor for ancestor in (path, *parents) if ancestor.exists()) if folder else path.resolve().parent
    try:
        if path.is_dir() and not folder:
            raise IsADirectoryError(EISDIR, strerror(EISDIR))
        from tempfile import TemporaryFile  # whoever writes nothing needs no random names

        with TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise InvalidOptionError(f"{str(path)!r} cannot be written: {error.strerror or error}; {advice}") from error


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Have `write` write a file that takes the place of `path` when it is complete.

    What is no regular file (`/dev/stdout`, a pipe) is written to directly.

    Raises:
        OSError: it cannot be written.
    """
    if is_special(path):
        with path.open("wb") as file:
            write(file)
    else:
        replace_file(path.resolve(), write)


def replace_file(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Have `write` write a file that takes the place of `target`, and its permissions, when it is complete.

    Where Linux can, the file has no name until then: a process that is killed leaves nothing that is half-written.

    Raises:
        OSError: it cannot be written, or a device or a pipe stands there; what stood there stays, and nothing stands
            beside it.
    """
    from secrets import token_hex

    if is_special(target):
        raise OSError(EINVAL, "a device or a pipe, which no file replaces")
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
    """`write`, for a file with the permissions of `target`, if that exists; Windows has none."""
    if not target.exists() or not hasattr(os, "fchmod"):
        return write
    mode = S_IMODE(target.stat().st_mode)

    def written(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), mode)
        write(file)

    return written


def _wrote_nameless(path: Path, write: Callable[[BinaryIO], object]) -> bool:
    """Have `write` write a file that gets its name afterwards; False, and nothing is written, where that cannot be."""
    if not hasattr(os, "O_TMPFILE") or not _OPEN_FILES.is_dir():
        return False
    try:
        file = open(path.parent, "wb", opener=_open_nameless)  # noqa: SIM115
    except OSError:  # not every file system has them; what else is wrong with the folder is said by what comes next
        return False
    with file:
        write(file)
        file.flush()
        # link() would take the symbolic link itself; with a folder, though of no use here, Python calls linkat()
        os.link(_OPEN_FILES / str(file.fileno()), path, src_dir_fd=file.fileno())
    return True


def _open_nameless(folder: str, flags: int) -> int:
    return os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666)


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
