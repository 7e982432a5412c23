"""Packages of new drivers and of Paddle plug-ins, written from templates.

A package made of templates, whole or not at all.

A template is a file of `templates/PART/` with `.template` behind its name. Names of files and their contents hold
`$name` (the device's and the package's name), `$title` (the same in words), `$Class` and what else a part is given;
`package` as the name of a folder stands for the package. Sources in C++ are copied as they are.
"""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from nnadapter.drivers.registry import library_path, sources
from nnadapter.errors import InvalidOptionError
from nnadapter.include import get_include
from nnadapter.onnx.construction import parse

_SUFFIX = ".template"
_COPIED = (".cc", ".h")


def write_package(folder: Path, write: Callable[[Path], None]) -> tuple[Path, ...]:
    """Have `write` fill a new folder, and put it where it belongs when it is whole.

    Returns:
        The files, in order.

    Raises:
        InvalidOptionError: `folder` exists, or cannot be written.
    """
    if folder.exists():
        raise InvalidOptionError(f"{str(folder)!r} exists already; remove it, or give another folder")
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as staging_dir:
            package_dir = Path(staging_dir) / "new"
            write(package_dir)
            package_dir.rename(folder)
    except OSError as error:
        raise InvalidOptionError(
            f"{str(folder)!r} cannot be written: {error.strerror or error}; give another folder"
        ) from error
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def write_part(part: str, folder: Path, words: Mapping[str, str]) -> None:
    """Write the templates of `templates/PART` into a folder, which is made if it is not there."""
    _write(files("nnadapter.new_driver") / "templates" / part, folder, words)


def copy_header(folder: Path) -> None:
    """Copy the header of the C interface into a folder."""
    shutil.copy(Path(get_include()) / "nnadapter_driver.h", folder)


def words_of(name: str) -> dict[str, str]:
    """The words of a device's name."""
    return {"name": name, "title": name.replace("_", " "), "Class": "".join(map(str.capitalize, name.split("_")))}


def _write(source: Traversable, target: Path, words: Mapping[str, str]) -> None:
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.is_dir():
            _write(entry, target / (words["name"] if entry.name == "package" else entry.name), words)
        elif entry.name.endswith(_SUFFIX):
            name = Template(entry.name.removesuffix(_SUFFIX)).substitute(words)
            text = Template(entry.read_text(encoding="utf-8")).substitute(words)
            (target / name).write_text(text, encoding="utf-8")
        elif entry.name.endswith(_COPIED):
            (target / entry.name).write_text(entry.read_text(encoding="utf-8"), encoding="utf-8")


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


LANGUAGES = ("python", "c")
"""What a driver can be written in."""
EXAMPLE = "example.onnx"
"""A model in the package, of which the new device takes a part."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MODEL = """
<ir_version: 10, opset_import: ["" : 17]>
example (float[2, 3] x) => (float[2, 3] y) {
    a = Relu (x)
    b = Sin (a)
    c = Neg (b)
    y = Add (c, a)
}
"""


def write_driver(name: str, folder: Path, language: str = "python", *, paddle: bool = False) -> tuple[Path, ...]:
    """Write the package of a driver for a device called `name` into `folder`, which must not exist yet.

    Everything is written, or nothing.

    Args:
        name: of the device and the package.
        folder: to write.
        language: one of `LANGUAGES`.
        paddle: write Paddle's plug-in of the driver, too, in the folder `paddle` within.

    Returns:
        The files, in order.

    Raises:
        InvalidOptionError: `name` or `language` is none, the name is taken, Paddle cannot load drivers in that
            language, or the folder cannot be written.
    """
    _check_name(name)
    if language not in LANGUAGES:
        raise InvalidOptionError(f"language is {language!r}, expected one of {', '.join(LANGUAGES)}")
    if paddle and language != "c":
        raise InvalidOptionError(f"Paddle loads drivers in C, language is {language!r}; add --lang c")

    def write(package_dir: Path) -> None:
        for part in ("any", language):
            write_part(part, package_dir, words_of(name))
        (package_dir / EXAMPLE).write_bytes(parse(_MODEL).SerializeToString())
        if language == "c":
            copy_header(package_dir / "csrc")
        if paddle:
            write_plug_in_part(name, Path(name, f"nnadapter_{name}.so"), package_dir / "paddle")

    return write_package(folder, write)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidOptionError(f"the name is {name!r}, expected small letters, digits and _, a letter first")
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or name in ("nnadapter", "partition", "numpy"):
        raise InvalidOptionError(f"{name!r} is a name of Python or of a package that drivers import; take another name")
    if name in sources():
        raise InvalidOptionError(
            f"a driver named {name!r} is there already, from {sources()[name].distribution}; take another name"
        )
