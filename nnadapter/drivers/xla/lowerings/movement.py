"""What moves, repeats or makes elements without computing with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.geometry import crop_and_padding, positive_slices
from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_NUMBERS, LAYOUTS, MOVED, computes, moves
from nnadapter.ir.named_operation import NamedOperation


def _split(x: Any, axis: int, split: Any) -> list[Any]:
    ends = np.cumsum(split)
    return [
        jax.lax.slice_in_dim(x, int(end - size), int(end), axis=axis) for size, end in zip(split, ends, strict=True)
    ]


def from_the_front(indices: Any, size: int) -> Any:
    """Indices with those below 0 counted from the end."""
    return jnp.where(indices < 0, indices + size, indices)


def within(indices: Any, size: int) -> Any:
    """Indices counted from the front; what is outside is the nearest one."""
    return jnp.clip(from_the_front(indices, size), 0, max(0, size - 1))  # JAX would count from the end once more


def take(x: Any, indices: Any, axis: int) -> Any:
    """Rows along an axis."""
    return jnp.take(x, within(indices, x.shape[axis]), axis, mode="clip")


def _gather_elements(x: Any, indices: Any, axis: int) -> Any:
    reached = tuple(slice(size) if other != axis else slice(None) for other, size in enumerate(indices.shape))
    return jnp.take_along_axis(x[reached], within(indices, x.shape[axis]), axis, mode="clip")


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "RESHAPE": lambda x, shape: x.reshape(shape),
    "TRANSPOSE": lambda x, perm, output_layout: x.transpose(perm),
    "EXPAND": lambda x, shape: jnp.broadcast_to(x, shape),
    "TILE": lambda x, repeats: jnp.tile(x, repeats),
    "CONCAT": lambda *inputs, axis: jnp.concatenate(inputs, axis),
    "GATHER": take,
    "GATHER_ELEMENTS": _gather_elements,
    "FILL": lambda value, shape: jnp.broadcast_to(value, shape),
}


@lowers(*FUNCTIONS, types=MOVED, quantized=True, layouts=LAYOUTS)
def lower_movement(operation: NamedOperation) -> Computes:
    """Elements moved by what attributes say; integers that stand for reals otherwise are brought to one scale."""
    made = operation.output.type.quantized
    if operation.type == "CONCAT" and any(operand and operand.type.quantized != made for operand in operation.inputs):
        return computes(operation, FUNCTIONS[operation.type])
    return moves(operation, FUNCTIONS[operation.type])


@lowers("SPLIT", types=MOVED, quantized=True, layouts=LAYOUTS)
def lower_split(operation: NamedOperation) -> Computes:
    """Parts along an axis."""
    return moves(operation, _split)


@lowers("SLICE", types=MOVED, quantized=True, layouts=LAYOUTS)
def lower_slice(operation: NamedOperation) -> Computes:
    """Every so many elements of some axes."""
    taken, turned = positive_slices(operation)
    return lambda x: jax.lax.rev(x[taken], turned) if turned else x[taken]


@lowers("PAD", types=MOVED, quantized=True, layouts=LAYOUTS)
def lower_pad(operation: NamedOperation) -> Computes:
    """More elements around those that there are, or fewer."""
    kept, widths = crop_and_padding(operation)
    mode, more = operation.mode, {}
    if mode == "constant":
        more["constant_values"] = np.array(operation.value).astype(operation.output.type.dtype.array_type)
    if not widths:
        return lambda x: x
    return lambda x: jnp.pad(x[kept], widths, mode=mode, **more)


@lowers("RANGE", types=ALL_NUMBERS)
def lower_range(operation: NamedOperation) -> Computes:
    """Numbers at equal distances."""
    made, count = operation.output.type.dtype.array_type, operation.count
    wide = jnp.float32 if operation.output.type.dtype in ("float16", "bfloat16") else made

    def numbers(start: Any, delta: Any) -> Any:
        return (start.astype(wide) + jnp.arange(count).astype(wide) * delta.astype(wide)).astype(made)

    return numbers
