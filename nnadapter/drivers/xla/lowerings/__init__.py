"""What computes each operation in `jax.numpy`, a family a file; imported when a model is judged, and JAX with it."""

from nnadapter.drivers.table_lowering import Lowers, rows_of
from nnadapter.drivers.xla.lowerings import (
    elementwise,
    images,
    linear_algebra,
    movement,
    reductions,
    sequences,
    windows,
)

_FAMILIES = (sequences, elementwise, windows, reductions, linear_algebra, movement, images)

LOWERINGS: tuple[Lowers, ...] = tuple(
    function for family in _FAMILIES for function in vars(family).values() if rows_of(function)
)
"""Every function with rows."""

__all__ = ["LOWERINGS"]
