"""PyTorch modules and exported programs as ONNX models, whole, by PyTorch's own exporter."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidModelError, InvalidOptionError
from nnadapter.torch.quiet import quiet
from nnadapter.torch.requirements import require_torch

if TYPE_CHECKING:
    import onnx


_AVERAGES = ("aten.avg_pool2d.default", "aten.avg_pool3d.default")
"""Averages over windows; their seventh argument is a divisor."""


def is_module(source: object) -> bool:
    """Whether `source` is a PyTorch module or an exported program; PyTorch is not imported to find out."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return isinstance(source, (torch.nn.Module, torch.export.ExportedProgram))


def model_of(module: Any, example_inputs: object = None) -> onnx.ModelProto:
    """Return a module, or an exported program, as an ONNX model.

    Args:
        module: the module, as it is: `eval()` is up to the person. An exported program may have open sizes.
        example_inputs: what the module is called with: a tuple, a dictionary of keywords, or one tensor. None for an
            exported program, which has its own.

    Raises:
        MissingExtraError: PyTorch or its exporter is missing or too old.
        InvalidOptionError: the inputs are missing.
        InvalidModelError: the exporter fails.
    """
    require_torch("a PyTorch module as a model")
    import torch

    is_program = isinstance(module, torch.export.ExportedProgram)
    if example_inputs is None and not is_program:
        raise InvalidOptionError(
            f"a module is captured by calling it; give inputs: InferenceSession({type(module).__name__.lower()}, (x,))"
        )
    named = dict(example_inputs) if isinstance(example_inputs, Mapping) else {}
    row = () if named or is_program else example_inputs
    arguments = tuple(row) if isinstance(row, (tuple, list)) else (row,)
    try:
        with quiet(), torch.no_grad():
            exported = torch.onnx.export(module, arguments, kwargs=named or None, dynamo=True, verbose=False)
            model: onnx.ModelProto = exported.model_proto
    except torch.onnx.OnnxExporterError as error:
        raise InvalidModelError(
            f"PyTorch's exporter cannot write {type(module).__name__} as ONNX: {_cause(error)}; "
            "torch.compile(module, backend='nnadapter') leaves in PyTorch what has no form there"
        ) from error
    _check_averages(module, exported.exported_program)
    return model


def _check_averages(module: Any, program: Any) -> None:
    averages = [node for node in program.graph.nodes if str(node.target) in _AVERAGES]
    if any([*node.args[6:], node.kwargs.get("divisor_override")][0] is not None for node in averages):
        raise InvalidModelError(
            f"PyTorch's exporter leaves out divisor_override= of an average in {type(module).__name__}; "
            "torch.compile(module, backend='nnadapter') runs it in PyTorch"
        )


def _cause(error: BaseException) -> str:
    """What the innermost cause says, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
