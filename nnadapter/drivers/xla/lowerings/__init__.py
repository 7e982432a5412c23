"""Lowerings of operations to `jax.numpy`, one family per file; importing them imports JAX."""

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

__all__ = ["LOWERINGS"]
