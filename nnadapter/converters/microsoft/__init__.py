"""Ops of ONNX Runtime's own domain; importing a file registers its converters. See `nnadapter.onnx.microsoft`."""

from __future__ import annotations

from nnadapter.converters.microsoft import matmul_n_bits
from nnadapter.converters.microsoft.bodies import register_bodies

__all__ = ["matmul_n_bits"]

register_bodies()
