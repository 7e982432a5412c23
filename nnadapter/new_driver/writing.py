"""Writing the package of a new driver."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

from nnadapter.drivers.registry import sources
from nnadapter.errors import InvalidOptionError
from nnadapter.new_driver.from_templates import copy_header, words_of, write_package, write_part
from nnadapter.new_driver.plug_in import write_plug_in_part
from nnadapter.onnx.building import parse

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
