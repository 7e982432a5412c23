"""Modules and exported programs as ONNX models, exported by PyTorch and given as objects or by name."""

from __future__ import annotations

import copy
import inspect
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    DeduplicateInitializersPass,
    InlinePass,
    LiftConstantsToInitializersPass,
    LiftSubgraphInitializersToMainGraphPass,
    NameFixPass,
    OutputFixPass,
    RemoveUnusedFunctionsPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
)
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import RewritePass, RewriteRule
from onnxscript.rewriter.rules import common as rules
from torch.export import ExportedProgram
from torch.onnx import OnnxExporterError, _constants
from torch.onnx._internal.exporter import _core

from nnadapter.errors import InvalidModelError, InvalidOptionError, ModelFileError, NNAdapterError, describe
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.torch.layouts import other_torch, quiet, require_torch
from nnadapter.torch.onnx_forms import as_tensors, without_types
from nnadapter.torch.operators import registry

if TYPE_CHECKING:
    import onnx


class WrongType(Exception):  # noqa: N818  it says why, and is always caught
    """A result has a data type that rounding does not mend."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def keep_type(graph: onnx.GraphProto, output: onnx.ValueInfoProto, like: Any) -> None:
    """Let an output of `graph` have the data type of `like`: a tensor, or a number that is a size.

    Raises:
        WrongType: it has one that is no wider floating-point type.
    """
    expected_type = _core.torch_dtype_to_onnx_dtype(like.dtype if isinstance(like, torch.Tensor) else torch.int64)
    actual_type = type(expected_type)(output.type.tensor_type.elem_type)
    if actual_type == expected_type:
        return
    if not (
        actual_type.is_floating_point()
        and expected_type.is_floating_point()
        and actual_type.bitwidth > expected_type.bitwidth
    ):
        raise WrongType(f"PyTorch's exporter gives {actual_type.name.lower()} in place of {expected_type.name.lower()}")
    _round(graph, output, int(expected_type))


def _round(graph: onnx.GraphProto, output: onnx.ValueInfoProto, element_type: int) -> None:
    """Put a Cast before an output, which keeps its name."""
    wide = f"{output.name}.wide"
    for node in graph.node:
        node.input[:] = [wide if name == output.name else name for name in node.input]
        node.output[:] = [wide if name == output.name else name for name in node.output]
    for value in (*graph.initializer, *graph.value_info):
        value.name = wide if value.name == output.name else value.name
    cast = graph.node.add(op_type="Cast", name=f"{output.name}.rounded", input=[wide], output=[output.name])
    cast.attribute.add(name="to", type=_INT, i=element_type)
    output.type.tensor_type.elem_type = element_type


_INT = 2
"""`AttributeProto.INT`."""


_ROUNDS = 2
"""As the exporter's own optimizer takes."""


def tidy(model: onnx_ir.Model) -> None:
    """Compute what is constant, write what is simpler so, and leave out what nobody reads or what is there twice."""
    InlinePass()(model)
    for _ in range(_ROUNDS):
        fold_constants_ir(model, onnx_shape_inference=True)
        _REWRITING(model)
        RemoveUnusedNodesPass()(model)
    _give_apart(model.graph)
    for tidying in _TIDYING:
        tidying()(model)


def _give_apart(graph: onnx_ir.Graph) -> None:
    """A result that nothing computes, by a node of its own: a model of nothing but constants has one to run.

    The pass that does so below for inputs takes the input's name for the result.
    """
    for place, value in enumerate(graph.outputs):
        if value.producer() is None:
            node = onnx_ir.node("Identity", inputs=[value])
            (result,) = node.outputs
            graph.append(node)
            graph.outputs[place] = result
            if value.is_graph_input():
                result.name = f"{value.name}_given"
            else:
                result.name, value.name = value.name, f"{value.name}_constant"
            result.shape, result.type = value.shape, value.type


def _multiplied(op: Any, x: Any, number: Any) -> Any:
    return op.Mul(x, number)


def _multiplying(op: Any, x: Any, number: Any) -> Any:
    return op.Mul(number, x)


def _divided(op: Any, x: Any, number: Any) -> Any:
    return op.Div(x, number)


def _itself(op: Any, x: Any, number: Any) -> Any:
    return op.Identity(x)


def _is_one(context: Any, x: Any, number: Any) -> bool:
    value = number.const_value
    return value is not None and not len(value.shape) and bool(value.numpy() == 1)


RULES = (
    "two_reshapes_matmul_reshape_rule",
    "one_reshape_matmul_reshape_rule",
    "cast_constant_of_shape_rule",
    "cast_constant_of_shape_without_value_rule",
    "collapse_slice_rule",
    "collapse_slice2_rule",
    "materialize_reshape_shape_rule",
    "flatten_to_reshape_rule",
    "reshape_reshape_rule",
    "squeeze_reshape_1d_rule",
    "unsqueeze_unsqueeze_rule",
    "transpose_transpose_rule",
    "successive_relu_rule",
    "no_op_cast_rule",
    "no_op_expand_rule",
    "no_op_transpose_rule",
    "no_op_dynamic_scatter_nd_rule",
    "no_op_static_scatter_nd_rule",
    "normalize_pad_format_conv_rule",
    "normalize_pad_format_conv_integer_rule",
    "fuse_pad_into_conv_rule",
    "fuse_pad_into_conv_integer_rule",
    "fuse_batchnorm_into_conv_rule",
    "fuse_batchnorm_into_conv_transpose_rule",
    "fuse_batchnorm_into_gemm_rule",
    "remove_optional_bias_from_conv_rule",
    "remove_optional_bias_from_conv_transpose_rule",
    "remove_optional_bias_from_gemm_rule",
)
"""Of the exporter's optimizer, by their names there; of another version, those that it has."""
_REWRITING = RewritePass(
    [
        *(RewriteRule(form, _itself, _is_one) for form in (_multiplied, _multiplying, _divided)),
        *(getattr(rules, name) for name in RULES if hasattr(rules, name)),
    ]
)
_TIDYING = (
    RemoveUnusedFunctionsPass,
    RemoveUnusedOpsetsPass,
    partial(LiftConstantsToInitializersPass, lift_all_constants=True, size_limit=0),
    LiftSubgraphInitializersToMainGraphPass,
    DeduplicateInitializersPass,
    CommonSubexpressionEliminationPass,
    OutputFixPass,
    NameFixPass,
)


def export_program(program: ExportedProgram) -> onnx.ModelProto:
    """Return what `torch.onnx.export` writes of a program, which makes its table of operators anew each time.

    Raises:
        OnnxExporterError: the exporter fails.
    """
    opset = _constants.ONNX_DEFAULT_OPSET
    return exported(program, registry=registry(opset), opset_version=opset)


class _Decomposed(ExportedProgram):  # type: ignore[misc]  # it has no types here
    """A program whose operators all have forms in ONNX: tracing it again would take longer than writing it."""

    def run_decompositions(self, *_: Any, **__: Any) -> ExportedProgram:
        return self


def exported(program: ExportedProgram, **options: Any) -> onnx.ModelProto:
    """Return what PyTorch's exporter writes of a program, with these options of its own, tidied; the program changes.

    Raises:
        OnnxExporterError: the exporter fails.
    """
    decomposed = _Decomposed(
        program.graph_module,
        program.graph,
        program.graph_signature,
        program.state_dict,
        program.range_constraints,
        program.module_call_graph,
        constants=program.constants,
    )
    as_tensors(decomposed.graph)
    written = _core.export(decomposed, verbose=False, optimize=False, **options)
    without_types(written.model)
    try:
        tidy(written.model)
    except Exception as error:  # of rules that are not ours; what failed is said by the innermost cause
        raise OnnxExporterError(f"what was written cannot be tidied: {error}") from error
    model: onnx.ModelProto = written.model_proto
    return model


_INSTEAD = "torch.compile(module, backend='nnadapter')"


def model_of(module: Any, example_inputs: object = None) -> onnx.ModelProto:
    """Return a module, or an exported program, as an ONNX model.

    Args:
        module: the module, as it is: `eval()` is up to the person, and where it matters, training mode is refused. An
            exported program may have open sizes.
        example_inputs: what the module is called with: a tuple, a dictionary of keywords, or one tensor. None for an
            exported program, which has its own.

    Raises:
        MissingExtraError: PyTorch or its exporter is missing or too old.
        InvalidOptionError: the inputs are missing.
        InvalidModelError: it cannot be captured or exported, changes what it is given or its buffers, or draws random
            numbers.
    """
    require_torch("a PyTorch module as a model")
    import torch

    if not isinstance(module, torch.export.ExportedProgram):
        if example_inputs is None:
            raise InvalidOptionError(
                "a module is captured by calling it; give inputs: "
                f"InferenceSession({type(module).__name__.lower()}, (x,)), or what torch.export.export makes of both"
            )
        return _exported(type(module).__name__, _captured(_on_host(module), example_inputs))
    return _exported("the program", module)


def _on_host(module: Any) -> Any:
    """A module with its tensors in the host's memory, which the exporter reads: a copy, if some live on a device."""
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module) if any(hasattr(tensor, "resident_state") for tensor in tensors) else module


def _captured(module: Any, example_inputs: object) -> Any:
    """A module as an exported program."""
    import torch

    named = dict(example_inputs) if isinstance(example_inputs, Mapping) else {}
    row = () if named else example_inputs
    arguments = tuple(row) if isinstance(row, (tuple, list)) else (row,)
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(module, arguments, named)
    except Exception as error:  # whatever the module raises, or PyTorch cannot capture
        raise InvalidModelError(
            f"PyTorch cannot capture {type(module).__name__} as one graph: {_text(error)}; {_INSTEAD} takes it in parts"
        ) from error


def _exported(name: str, program: Any) -> onnx.ModelProto:
    """An exported program as a model: operators are written as those of compiled graphs, and refused for the same."""
    import torch

    try:
        from nnadapter.torch.operators import decomposition_table
    except ImportError as error:
        raise other_torch("a PyTorch module as a model", error) from error
    try:
        with quiet(), torch.no_grad():
            program = program.run_decompositions(dict(decomposition_table()))
            _refuse_changes(name, program.graph_signature)
            _refuse_others(name, program.graph.nodes)
            likes = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
            model = export_program(program)
            _keep_types(model, likes)
    except (torch.onnx.OnnxExporterError, WrongType) as error:
        raise InvalidModelError(
            f"PyTorch's exporter cannot write {name} as ONNX: {_text(error)}; {_INSTEAD} leaves in PyTorch what has no "
            "form there"
        ) from error
    return model


def _refuse_changes(name: str, signature: Any) -> None:
    """A session keeps no state: batch normalization in training would change its statistics."""
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise InvalidModelError(
            f"{name} changes {changed[0]!r} when it is called, which sessions do not; call eval() if it is in training "
            f"mode, or use {_INSTEAD}"
        )


def _refuse_others(name: str, nodes: Iterable[Any]) -> None:
    """Operators that the exporter writes as another function."""
    from nnadapter.torch.operators import is_random, written_otherwise

    for node in nodes:
        reason = written_otherwise(node)
        if reason is not None or is_random(node):
            detail = (
                "it draws random numbers; call eval() if it is in training mode" if reason is None else reason.detail
            )
            raise InvalidModelError(
                f"{node.target} in {name} cannot be part of a session: {detail}; {_INSTEAD} runs it in PyTorch"
            )


def _keep_types(model: onnx.ModelProto, likes: Mapping[str, Any]) -> None:
    """Results have PyTorch's data types; the exporter gives wider ones for sums of 16-bit numbers."""
    for value in model.graph.output:
        if value.name in likes and not isinstance(likes[value.name], (tuple, list)):
            keep_type(model.graph, value, likes[value.name])


def _text(error: BaseException | None) -> str:
    """What the innermost cause says, in one line."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


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
            raise InvalidOptionError(f"{named!r} raises {_error_with_line(error, path)}; mend it there") from error
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


def _error_with_line(error: Exception, path: Path) -> str:
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
