"""A program of PyTorch's as an ONNX model, by PyTorch's own exporter with the table of operators that is kept.

What the exporter wrote is tidied here and not by its own optimizer, which takes numbers for 0 or 1 that are close to
these: of `x / (y + 1e-9)` it leaves `x / y`, of `x * 0.999995` nothing. What is worth rewriting, preparation and passes
rewrite, as in models from elsewhere.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import onnx_ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants_ir
from torch.export import ExportedProgram
from torch.onnx import _constants
from torch.onnx._internal.exporter import _core

from nnadapter.torch_models.numbers import as_tensors, without_types
from nnadapter.torch_models.operators import registry

if TYPE_CHECKING:
    import onnx


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
    _tidy(written.model)
    model: onnx.ModelProto = written.model_proto
    return model


def _tidy(model: onnx_ir.Model) -> None:
    """Compute what is constant, and leave out what nobody reads or what is there twice."""
    without_types(model)
    common.InlinePass()(model)
    fold_constants_ir(model, onnx_shape_inference=True)
    for tidying in _TIDYING:
        tidying()(model)


_TIDYING = (
    common.RemoveUnusedNodesPass,
    common.RemoveUnusedFunctionsPass,
    common.RemoveUnusedOpsetsPass,
    partial(common.LiftConstantsToInitializersPass, lift_all_constants=True, size_limit=0),
    common.LiftSubgraphInitializersToMainGraphPass,
    common.DeduplicateInitializersPass,
    common.CommonSubexpressionEliminationPass,
    common.OutputFixPass,
    common.NameFixPass,
)
