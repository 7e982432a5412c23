"""Writing the package that makes a driver in C a custom device of Paddle."""

from __future__ import annotations

import sys
from pathlib import Path

from nnadapter.drivers.registry import library_path
from nnadapter.errors import InvalidOptionError
from nnadapter.new_driver.from_templates import copy_header, words_of, write_package, write_part


def write_plug_in(name: str, folder: Path) -> tuple[Path, ...]:
    """Write the package of Paddle's plug-in for the driver in C that is called `name` into `folder`, a new one.

    Everything is written, or nothing.

    Returns:
        The files, in order.

    Raises:
        DeviceNotFoundError: there is no such driver.
        DeviceUnavailableError: the driver cannot be loaded.
        InvalidOptionError: it is not in C, or the folder exists or cannot be written.
    """
    library = library_path(name)
    if library is None:
        raise InvalidOptionError(f"driver {name!r} is not in C, and Paddle loads nothing else; name one in C")
    return write_package(folder, lambda package_dir: write_plug_in_part(name, library, package_dir))


def write_plug_in_part(name: str, library: Path, folder: Path) -> None:
    """Write the package into `folder`; `library` lies in the driver's package, or in a folder of its own."""
    write_part("paddle", folder, {**words_of(name), "library": _as_installed(name, library).as_posix()})
    copy_header(folder / "csrc")


def _as_installed(name: str, library: Path) -> Path:
    """Where the library lies below the folder that packages are installed in."""
    for folder in library.parents:
        if str(folder) in sys.path:
            return library.relative_to(folder)
    return Path(name, library.name)
