"""The adapter IR to ONNX: a registry of exporters, one file per family of operations, and the export of a model."""

from __future__ import annotations

from nnadapter.exporting import (  # noqa: F401  importing a family registers its exporters
    attention,
    elementwise,
    linear_algebra,
    movement,
    normalization,
    quantization,
    recurrent,
    reduction,
    resampling,
    windows,
)
from nnadapter.exporting.export import Export, export_model, to_onnx
from nnadapter.exporting.writer import exporters

__all__ = ["Export", "export_model", "exporters", "to_onnx"]
