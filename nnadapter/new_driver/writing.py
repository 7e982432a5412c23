"""Writing the package of a new driver from templates.

A template is a file of `templates/LANGUAGE/` or `templates/any/` with `.template` behind its name. Names of files and
their contents hold `$name` (the device's and the package's name), `$title` (the same in words) and `$Class`; `package`
as the name of a folder stands for the package.
"""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from nnadapter.drivers.registry import sources
from nnadapter.errors import InvalidOptionError
from nnadapter.include import get_include
from nnadapter.onnx.building import parse

LANGUAGES = ("python", "c")
"""What a driver can be written in."""
EXAMPLE = "example.onnx"
"""A model in the package, of which the new device takes a part."""

_SUFFIX = ".template"
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


def write_driver(name: str, folder: Path, language: str = "python") -> tuple[Path, ...]:
    """Write the package of a driver for a device called `name` into `folder`, which must not exist yet.

    Everything is written, or nothing.

    Returns:
        The files, in order.

    Raises:
        InvalidOptionError: `name` or `language` is none, the name is taken, or the folder cannot be written.
    """
    _check_name(name)
    if language not in LANGUAGES:
        raise InvalidOptionError(f"language is {language!r}, expected one of {', '.join(LANGUAGES)}")
    if folder.exists():
        raise InvalidOptionError(f"{str(folder)!r} exists already; remove it, or give another folder")
    words = {"name": name, "title": name.replace("_", " "), "Class": "".join(map(str.capitalize, name.split("_")))}
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
            new = Path(beside) / "new"
            for part in ("any", language):
                _write(files("nnadapter.new_driver") / "templates" / part, new, words)
            (new / EXAMPLE).write_bytes(parse(_MODEL).SerializeToString())
            if language == "c":
                shutil.copy(Path(get_include()) / "nnadapter_driver.h", new / "csrc")
            new.rename(folder)
    except OSError as error:
        raise InvalidOptionError(
            f"{str(folder)!r} cannot be written: {error.strerror or error}; give another folder"
        ) from error
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidOptionError(f"the name is {name!r}, expected small letters, digits and _, a letter first")
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or name in ("nnadapter", "partition", "numpy"):
        raise InvalidOptionError(f"{name!r} is a name of Python or of a package that drivers import; take another name")
    if name in sources():
        raise InvalidOptionError(
            f"a driver named {name!r} is there already, from {sources()[name].distribution}; take another name"
        )


def _write(source: Traversable, target: Path, words: dict[str, str]) -> None:
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.is_dir():
            _write(entry, target / (words["name"] if entry.name == "package" else entry.name), words)
        elif entry.name.endswith(_SUFFIX):
            name = Template(entry.name.removesuffix(_SUFFIX)).substitute(words)
            text = Template(entry.read_text(encoding="utf-8")).substitute(words)
            (target / name).write_text(text, encoding="utf-8")
