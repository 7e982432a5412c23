"""What is computed with the bits of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import HELD, INTEGERS, LAYOUTS, moves
from nnadapter.ir.named_operation import NamedOperation


def _shift(x: Any, y: Any, direction: str) -> Any:
    """XLA says what comes of counts that are too large or negative: nothing, or the sign."""
    x, y = jnp.broadcast_arrays(x, y)
    if direction == "left":
        return jax.lax.shift_left(x, y)
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return jax.lax.shift_right_arithmetic(x, y) if signed else jax.lax.shift_right_logical(x, y)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "BITWISE_AND": jnp.bitwise_and,
    "BITWISE_OR": jnp.bitwise_or,
    "BITWISE_XOR": jnp.bitwise_xor,
    "BITWISE_NOT": jnp.bitwise_not,
    "BIT_SHIFT": _shift,
}


@lowers(*FUNCTIONS, types=INTEGERS, layouts=LAYOUTS)
def lower_bits(operation: NamedOperation) -> Computes:
    """Bit by bit."""
    return moves(operation, FUNCTIONS[operation.type])


@lowers("BIT_CAST", types=HELD, layouts=LAYOUTS, limits="bytes that become bool are true unless 0")
def lower_bit_cast(operation: NamedOperation) -> Computes:
    """The same bytes read as another type."""
    made = operation.output.type.dtype.array_type

    def cast(x: Any, to: str) -> Any:
        bytes_ = x.astype(jnp.uint8) if x.dtype.kind == "b" else x
        return bytes_ != 0 if made.kind == "b" else jax.lax.bitcast_convert_type(bytes_, made)

    return moves(operation, cast)
