"""Decompositions of ATen operators without an ONNX form, mostly gradients."""

from nnadapter.torch.decompositions.table import DECOMPOSITIONS, decompositions

__all__ = ["DECOMPOSITIONS", "decompositions"]
