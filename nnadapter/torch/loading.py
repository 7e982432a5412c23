"""Modules that a command line names: a function in a script, or a file of an exported program."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from nnadapter.errors import InvalidOptionError, ModelFileError
from nnadapter.torch.modules import is_module, model_of
from nnadapter.torch.requirements import require_torch

if TYPE_CHECKING:
    import onnx

_FUNCTION = re.compile(r"^(?P<file>.+\.py):(?P<name>[^\W\d]\w*)$")
_PROGRAM = ".pt2"


def names_module(named: str) -> bool:
    """Whether a name is one of a module: `SCRIPT.py:FUNCTION`, or `FILE.pt2`."""
    return _FUNCTION.match(named) is not None or named.endswith(_PROGRAM)


def load_named(named: str) -> onnx.ModelProto:
    """Return the ONNX model of a module that `names_module` knows.

    The function takes nothing and returns a module with its inputs, or an exported program.

    Raises:
        MissingExtraError: PyTorch or its exporter is missing or too old.
        ModelFileError: the file cannot be read.
        InvalidOptionError: the script has no such function, or it returns something else.
        InvalidModelError: the exporter fails.
    """
    require_torch(f"{named!r}")
    import torch

    found = _FUNCTION.match(named)
    path = Path(found["file"] if found else named)
    if not path.is_file():
        raise ModelFileError(f"model file {str(path)!r} cannot be read: there is no such file; give one that is there")
    if found:
        return _made(named, runpy.run_path(str(path)).get(found["name"]))
    try:
        return model_of(torch.export.load(path))
    except (BadZipFile, RuntimeError, ValueError, OSError, KeyError) as error:
        raise ModelFileError(
            f"model file {named!r} is no exported program: {error}; write it by torch.export.save"
        ) from error


def _made(named: str, function: Any) -> onnx.ModelProto:
    if not callable(function):
        raise InvalidOptionError(f"{named!r} names no function; give SCRIPT.py:FUNCTION, one that takes nothing")
    made = function()
    if is_module(made):
        return model_of(made)
    if isinstance(made, tuple) and len(made) == 2 and is_module(made[0]):
        return model_of(*made)
    raise InvalidOptionError(
        f"{named!r} is to return a module and its inputs, or an exported program, got {type(made).__name__}"
    )
