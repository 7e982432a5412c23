"""PyTorch modules and exported programs as ONNX models."""

from __future__ import annotations

import copy
import inspect
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidModelError, InvalidOptionError, ModelFileError, NNAdapterError, describe
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.torch.requirements import other_torch, quiet, require_torch

if TYPE_CHECKING:
    import onnx


_INSTEAD = "torch.compile(module, backend='nnadapter')"


def model_of(module: Any, example_inputs: object = None) -> onnx.ModelProto:
    """Export a module, or a program with static or dynamic shapes, as an ONNX model.

    `example_inputs` are the arguments of a module: a tuple, a dictionary of keywords, or one tensor.

    Raises:
        InvalidOptionError: the inputs are missing.
        InvalidModelError: the module cannot be exported, mutates inputs or buffers, or draws random numbers, as in
            training mode.
    """
    require_torch("a PyTorch module as a model")
    import torch

    if not isinstance(module, torch.export.ExportedProgram):
        if example_inputs is None:
            raise InvalidOptionError(
                "a module is captured by a call, which needs inputs; pass "
                f"InferenceSession({type(module).__name__.lower()}, (x,)), or the result of torch.export.export"
            )
        return _exported(type(module).__name__, _captured(_on_host(module), example_inputs))
    return _exported("the program", module)


def _on_host(module: Any) -> Any:
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module) if any(hasattr(tensor, "resident_state") for tensor in tensors) else module


def _captured(module: Any, example_inputs: object) -> Any:
    import torch

    named = dict(example_inputs) if isinstance(example_inputs, Mapping) else {}
    row = () if named else example_inputs
    arguments = tuple(row) if isinstance(row, (tuple, list)) else (row,)
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(module, arguments, named)
    except Exception as error:  # the module may raise any error
        raise InvalidModelError(
            f"PyTorch cannot capture {type(module).__name__} as one graph: {_text(error)}; {_INSTEAD} compiles it "
            "in parts"
        ) from error


def _exported(name: str, program: Any) -> onnx.ModelProto:
    import torch

    try:
        from nnadapter.torch import models, operators
    except ImportError as error:
        raise other_torch("a PyTorch module as a model", error) from error
    try:
        with quiet(), torch.no_grad():
            program = program.run_decompositions(dict(operators.decomposition_table()))
            _refuse_changes(name, program.graph_signature)
            _refuse_others(name, program.graph.nodes)
            likes = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
            model = models.export_program(program)
            for value in model.graph.output:
                if value.name in likes and not isinstance(likes[value.name], (tuple, list)):
                    models.keep_type(model.graph, value, likes[value.name])
    except (torch.onnx.OnnxExporterError, models.WrongType) as error:
        raise InvalidModelError(
            f"PyTorch's exporter cannot write {name} as ONNX: {_text(error)}; {_INSTEAD} runs unsupported "
            "operators in PyTorch"
        ) from error
    return model


def _refuse_changes(name: str, signature: Any) -> None:
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise InvalidModelError(
            f"{name} changes {changed[0]!r} when it is called, which sessions cannot; call eval() if it is in training "
            f"mode, or use {_INSTEAD}"
        )


def _refuse_others(name: str, nodes: Iterable[Any]) -> None:
    from nnadapter.torch.operators import is_random, wrong_form

    for node in nodes:
        reason = wrong_form(node)
        if reason is not None or is_random(node):
            detail = (
                "it draws random numbers; call eval() if it is in training mode" if reason is None else reason.detail
            )
            raise InvalidModelError(
                f"{node.target} in {name} cannot be part of a session: {detail}; {_INSTEAD} runs it in PyTorch"
            )


def _text(error: BaseException | None) -> str:
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


_FUNCTION = re.compile(r"^(?P<file>.+\.py):(?P<name>[^\W\d]\w*)$")
_PROGRAM = ".pt2"


def names_module(named: str) -> bool:
    """Return True for `SCRIPT.py:FUNCTION` and `FILE.pt2`."""
    return _FUNCTION.match(named) is not None or named.endswith(_PROGRAM)


def load_named(named: str) -> onnx.ModelProto:
    """Load a module or program by name; see `names_module`.

    The function takes no arguments, and returns a module with its inputs, or an exported program. The script prints to
    stderr, and can import from its folder.

    Raises:
        ModelFileError: the file cannot be read.
        InvalidOptionError: there is no such function, or it raises, exits or returns another type.
        InvalidModelError: the exporter fails.
    """
    require_torch(f"{named!r}")

    match = _FUNCTION.match(named)
    path = Path(match["file"] if match else named)
    if not path.is_file():
        raise ModelFileError(f"model file {str(path)!r} does not exist; check the path")
    return _of_script(named, path, match["name"]) if match else _of_program(named, path)


def _of_program(named: str, path: Path) -> onnx.ModelProto:
    import torch

    try:
        with quiet():
            program = torch.export.load(path)
    except Exception as error:  # torch.export.load raises errors of any type
        raise ModelFileError(
            f"model file {named!r} is not an exported program: {describe(error)}; write it with torch.export.save"
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
                f"{named!r} exits with code {error.code!r}; the script and the function must return"
            ) from error
        except Exception as error:
            raise InvalidOptionError(f"{named!r} raises {_error_with_line(error, path)}; fix the script") from error
    if kind_of(result) is SourceKind.MODULE:
        return model_of(result)
    if isinstance(result, tuple) and len(result) == 2 and kind_of(result[0]) is SourceKind.MODULE:
        return model_of(*result)
    raise InvalidOptionError(
        f"{named!r} must return a module and its inputs, or an exported program, got {type(result).__name__}"
    )


def _function(named: str, function: Any) -> Callable[[], Any]:
    if not callable(function):
        raise InvalidOptionError(
            f"{named!r} does not name a function; pass SCRIPT.py:FUNCTION, a function that takes no arguments"
        )
    needed = _needed(function)
    if needed:
        raise InvalidOptionError(
            f"{named!r} names a function that needs {', '.join(needed)}; pass one without parameters"
        )
    factory: Callable[[], Any] = function
    return factory


def _needed(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # functions in C may have no signature
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variable
    ]


@contextmanager
def _running(path: Path) -> Iterator[None]:
    script_folder = str(path.resolve().parent)
    sys.path.insert(0, script_folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if script_folder in sys.path:  # the script may have changed it
            sys.path.remove(script_folder)


def _error_with_line(error: Exception, path: Path) -> str:
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.lineno is not None:
        lines.append(error.lineno)
    message = describe(error)
    return f"{message} ({path.name}:{lines[-1]})" if lines else message
