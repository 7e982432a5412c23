"""A package made of templates, whole or not at all.

A template is a file of `templates/PART/` with `.template` behind its name. Names of files and their contents hold
`$name` (the device's and the package's name), `$title` (the same in words), `$Class` and what else a part is given;
`package` as the name of a folder stands for the package. Sources in C++ are copied as they are.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from nnadapter.errors import InvalidOptionError
from nnadapter.include import get_include

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
