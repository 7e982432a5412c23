"""A program of PyTorch's as an ONNX model, by PyTorch's own exporter with the table of operators that is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.export import ExportedProgram
from torch.onnx import OnnxExporterError, _constants
from torch.onnx._internal.exporter import _core

from nnadapter.torch_models.numbers import as_tensors, without_types
from nnadapter.torch_models.operators import registry
from nnadapter.torch_models.tidying import tidy

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
    without_types(written.model)
    try:
        tidy(written.model)
    except Exception as error:  # of rules that are not ours; what failed is said by the innermost cause
        raise OnnxExporterError(f"what was written cannot be tidied: {error}") from error
    model: onnx.ModelProto = written.model_proto
    return model
