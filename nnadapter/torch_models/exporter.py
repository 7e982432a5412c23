"""A program of PyTorch's as an ONNX model, by PyTorch's own exporter with the table of operators that is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.onnx import _constants
from torch.onnx._internal.exporter import _core

from nnadapter.torch_models.operators import registry

if TYPE_CHECKING:
    import onnx
    from torch.export import ExportedProgram


def export_program(program: ExportedProgram) -> onnx.ModelProto:
    """Return what `torch.onnx.export` writes of a program, which makes its table of operators anew each time.

    Raises:
        OnnxExporterError: the exporter fails.
    """
    opset = _constants.ONNX_DEFAULT_OPSET
    model: onnx.ModelProto = _core.export(
        program, registry=registry(opset), opset_version=opset, verbose=False
    ).model_proto
    return model
