"""A script's TOML file, or its text, as `Script`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping

from msgspec import Struct

from nnadapter.drivers.faulty.script import Fault, Script, Seed
from nnadapter.errors import FaultScriptError
from nnadapter.files.strict import FileKind

VARIABLE = "NNADAPTER_FAULTS"
"""The environment variable that names the script of devices whose options name none."""
TEXT = "the script's text"
"""What messages call a script that was given as a text."""


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of the file."""

    fault: tuple[Fault, ...] = ()
    seed: Seed = 0
    log: str = ""


_FILE = FileKind(
    name="script of faults",
    contents=_Document,
    error=FaultScriptError,
    advice="change the script; docs/faults.md has one of every kind",
    parse=tomllib.loads,
    hints={"fault": "write [[fault]], with two brackets"},
)


def read_script(source: str | os.PathLike[str]) -> Script:
    """Return the script of a TOML file, or of a text of more than one line.

    Raises:
        FaultScriptError: it cannot be read, is no TOML, has a key that is not known, or a value that does not fit. It
            names file, fault and key.
    """
    if isinstance(source, str) and "\n" in source:
        document = _FILE.parsed(source.removeprefix("\ufeff"), TEXT)
    else:
        document = _FILE.read(source)
    return Script(faults=document.fault, seed=document.seed, log=document.log)


def script_in(environment: Mapping[str, str]) -> Script:
    """Return the script that the environment names; one without faults where it names none."""
    named = environment.get(VARIABLE, "").strip("\ufeff ")
    return read_script(named) if named else Script()
