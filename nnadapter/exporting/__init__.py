"""Export of adapter IR models to ONNX. The operations' exporters are in `nnadapter.converters`."""

from __future__ import annotations

from nnadapter.converters.export import Export, export_model, to_onnx
from nnadapter.converters.registry import exporters

__all__ = ["Export", "export_model", "exporters", "to_onnx"]
