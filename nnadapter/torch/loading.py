"""Modules that a command line names: a function in a script, or a file of an exported program."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidOptionError, ModelFileError, NNAdapterError, describe
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.torch_models.modules import model_of
from nnadapter.torch_models.quiet import quiet
from nnadapter.torch_models.requirements import require_torch

if TYPE_CHECKING:
    import onnx

_FUNCTION = re.compile(r"^(?P<file>.+\.py):(?P<name>[^\W\d]\w*)$")
_PROGRAM = ".pt2"


def names_module(named: str) -> bool:
    """Whether a name is one of a module: `SCRIPT.py:FUNCTION`, or `FILE.pt2`."""
    return _FUNCTION.match(named) is not None or named.endswith(_PROGRAM)


def load_named(named: str) -> onnx.ModelProto:
    """Return the ONNX model of a module that `names_module` knows.

    The function takes nothing and returns a module with its inputs, or an exported program. What the script prints goes
    to the standard error, as the standard output is the report's; what it imports may lie beside it.

    Raises:
        MissingExtraError: PyTorch or its exporter is missing or too old.
        ModelFileError: the file cannot be read.
        InvalidOptionError: the script has no such function, or it returns something else, raises or ends the process.
        InvalidModelError: the exporter fails.
    """
    require_torch(f"{named!r}")

    match = _FUNCTION.match(named)
    path = Path(match["file"] if match else named)
    if not path.is_file():
        raise ModelFileError(f"model file {str(path)!r} cannot be read: there is no such file; give one that is there")
    return _of_script(named, path, match["name"]) if match else _of_program(named, path)


def _of_program(named: str, path: Path) -> onnx.ModelProto:
    import torch

    try:
        with quiet():
            program = torch.export.load(path)
    except Exception as error:  # what PyTorch says of files that it cannot read is of any type
        raise ModelFileError(
            f"model file {named!r} is no exported program: {describe(error)}; write it by torch.export.save"
        ) from error
    return model_of(program)


def _of_script(named: str, path: Path, name: str) -> onnx.ModelProto:
    with _running(path):
        try:
            result = _function(named, runpy.run_path(str(path)).get(name))()
        except NNAdapterError:
            raise
        except SystemExit as error:
            raise InvalidOptionError(
                f"{named!r} ends the process, with exit code {error.code!r}; give a script and a function that return"
            ) from error
        except Exception as error:
            raise InvalidOptionError(f"{named!r} raises {_said(error, path)}; mend it there") from error
    if kind_of(result) is SourceKind.MODULE:
        return model_of(result)
    if isinstance(result, tuple) and len(result) == 2 and kind_of(result[0]) is SourceKind.MODULE:
        return model_of(*result)
    raise InvalidOptionError(
        f"{named!r} is to return a module and its inputs, or an exported program, got {type(result).__name__}"
    )


def _function(named: str, function: Any) -> Callable[[], Any]:
    if not callable(function):
        raise InvalidOptionError(f"{named!r} names no function; give SCRIPT.py:FUNCTION, one that takes nothing")
    needed = _needed(function)
    if needed:
        raise InvalidOptionError(
            f"{named!r} names a function that needs {', '.join(needed)}; give one that takes nothing"
        )
    factory: Callable[[], Any] = function
    return factory


def _needed(function: Callable[..., Any]) -> list[str]:
    """The parameters that a function cannot do without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # functions in C need not say
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variable
    ]


@contextmanager
def _running(path: Path) -> Iterator[None]:
    """While it runs, a script finds what lies beside it, and prints to the standard error."""
    script_folder = str(path.resolve().parent)
    sys.path.insert(0, script_folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if script_folder in sys.path:  # the script may have changed it
            sys.path.remove(script_folder)


def _said(error: Exception, path: Path) -> str:
    """An error with the line of the script where it was raised."""
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.lineno is not None:
        lines.append(error.lineno)
    message = describe(error)
    return f"{message} ({path.name}:{lines[-1]})" if lines else message
