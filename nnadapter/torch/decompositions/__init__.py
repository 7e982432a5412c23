"""Operators of ATen that have no form in ONNX, gradients above all, written in operators that have one."""

from nnadapter.torch.decompositions.table import DECOMPOSITIONS, decompositions

__all__ = ["DECOMPOSITIONS", "decompositions"]
