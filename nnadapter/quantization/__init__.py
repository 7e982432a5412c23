"""Quantization of ONNX models, with a choice per node."""

from __future__ import annotations
