"""Templates of driver packages, and of Paddle plug-ins for C drivers.

File names and contents of `templates/PART/*.template` may contain `$name`, `$title` and `$Class`. A folder `package`
gets the name of the package. C++ sources are copied.
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

__all__ = ["LANGUAGES", "write_driver", "write_plug_in"]

_SUFFIX = ".template"
_COPIED = (".cc", ".h")


def write_package(folder: Path, write: Callable[[Path], None]) -> tuple[Path, ...]:
    """Create a folder by `write`, atomically; return its files in order.

    Raises:
        InvalidOptionError: `folder` exists, or cannot be written.
    """
    if folder.exists():
        raise InvalidOptionError(f"{str(folder)!r} exists already; remove it, or choose another folder")
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as staging_dir:
            package_dir = Path(staging_dir) / "new"
            write(package_dir)
            package_dir.rename(folder)
    except OSError as error:
        raise InvalidOptionError(
            f"{str(folder)!r} cannot be written: {error.strerror or error}; choose another folder"
        ) from error
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def write_part(part: str, folder: Path, words: Mapping[str, str]) -> None:
    """Write the templates of `templates/PART` into a folder, which is created if needed."""
    _write(files("nnadapter.new_driver") / "templates" / part, folder, words)


def copy_header(folder: Path) -> None:
    """Copy the C header of the driver interface into a folder."""
    shutil.copy(Path(get_include()) / "nnadapter_driver.h", folder)


def words_of(name: str) -> dict[str, str]:
    """Return the values of `$name`, `$title` and `$Class` in templates."""
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
    """Write a package with Paddle's plug-in for a C driver into a new folder, atomically; return its files.

    Raises:
        DeviceNotFoundError: there is no driver `name`.
        DeviceUnavailableError: the driver cannot be loaded.
        InvalidOptionError: the driver is not in C, or the folder exists or cannot be written.
    """
    library = library_path(name)
    if library is None:
        raise InvalidOptionError(f"driver {name!r} is not in C, as Paddle requires; name one in C")
    return write_package(folder, lambda package_dir: write_plug_in_part(name, library, package_dir))


def write_plug_in_part(name: str, library: Path, folder: Path) -> None:
    """Write the plug-in's package into `folder`."""
    write_part("paddle", folder, {**words_of(name), "library": _as_installed(name, library).as_posix()})
    copy_header(folder / "csrc")


def _as_installed(name: str, library: Path) -> Path:
    for folder in library.parents:
        if str(folder) in sys.path:
            return library.relative_to(folder)
    return Path(name, library.name)


LANGUAGES = ("python", "c")
"""Languages in which drivers are written."""
EXAMPLE = "example.onnx"
"""Example model in a driver package, partly supported by the package's device."""

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
    """Write a driver package called `name` into a new folder, atomically; return its files in order.

    `language` is one of `LANGUAGES`. With `paddle`, Paddle's plug-in is also written, into `paddle`.

    Raises:
        InvalidOptionError: an argument is invalid, or the folder cannot be written.
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
        raise InvalidOptionError(f"the name is {name!r}, expected lowercase letters, digits and _, first a letter")
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or name in ("nnadapter", "partition", "numpy"):
        raise InvalidOptionError(f"{name!r} is a name of Python or of a package that drivers import; choose another")
    if name in sources():
        raise InvalidOptionError(
            f"a driver named {name!r} exists already, from {sources()[name].distribution}; choose another name"
        )
