"""What computes each operation in `jax.numpy`, a family a file; imported when a model is judged, and JAX with it."""

from nnadapter.drivers.tables.lowering import Lowers, rows_of
from nnadapter.drivers.xla.lowerings import (
    attention,
    bits,
    convolution,
    elementwise,
    losses,
    matrix,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    regions,
    resizing,
    sampling,
    scattering,
    spectral,
)

_FAMILIES = (
    attention,
    bits,
    convolution,
    elementwise,
    losses,
    matrix,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    regions,
    resizing,
    sampling,
    scattering,
    spectral,
)

LOWERINGS: tuple[Lowers, ...] = tuple(
    function for family in _FAMILIES for function in vars(family).values() if rows_of(function)
)
"""Every function with rows."""

__all__ = ["LOWERINGS"]
