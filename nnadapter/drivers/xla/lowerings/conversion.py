"""From one data type to another."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def converted(x: Any, made: Any) -> Any:
    """A value in another type; anything but 0 is true.

    Where an integer type does not have a float, ONNX leaves open what comes out. Processors give the smallest number of
    32 or 64 bits, and the low bits of it where fewer are wanted; XLA gives the nearest one, but not here.
    """
    if made.kind == "b":
        return x != 0
    if not jnp.issubdtype(x.dtype, jnp.floating) or not jnp.issubdtype(made, jnp.integer):
        return x.astype(made)
    wide = jnp.int64 if made in (jnp.int64, jnp.uint32, jnp.uint64) else jnp.int32
    if made == jnp.uint64:
        return jnp.where(x < 0, converted(x, np.dtype(np.int64)).astype(made), x.astype(made))
    bound = 2.0 ** (8 * jnp.dtype(wide).itemsize - 1)
    reals = x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)
    has = (reals >= -bound) & (reals < bound)
    return jnp.where(has, reals.astype(wide), jnp.iinfo(wide).min).astype(made)
