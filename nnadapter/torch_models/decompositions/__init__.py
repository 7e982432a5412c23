"""Operators of ATen that have no form in ONNX, gradients above all, written in operators that have one."""

from nnadapter.torch_models.decompositions.table import OWN, decompositions

__all__ = ["OWN", "decompositions"]
