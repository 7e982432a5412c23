"""Activations: of their own, and as others fuse them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnadapter.ir.operand import DataType
from nnadapter.ir.quantized import integer_range

_HALF_OF_SQUARE_ROOT = float(np.sqrt(0.5))


def gelu(x: Any, approximate: str = "none") -> Any:
    """`x` times the share of a normal distribution below it, or what approximates it by tanh."""
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(float(np.sqrt(2 / np.pi)) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * jax.lax.erfc(-x * _HALF_OF_SQUARE_ROOT)


def hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    """A line that ends at 0 and 1."""
    return jnp.clip(alpha * x + beta, 0, 1)


def elu(x: Any, alpha: float) -> Any:
    """`x`, or an exponential below 0."""
    return jnp.where(x < 0, alpha * jnp.expm1(x), x)


def softplus(x: Any) -> Any:
    """log(1 + exp(x)), without overflow."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def softsign(x: Any) -> Any:
    """`x` over its distance from -1 or 1."""
    return x / (1 + jnp.abs(x))


def leaky_relu(x: Any, alpha: float) -> Any:
    """`x`, or a share of it below 0."""
    return jnp.where(x < 0, alpha * x, x)


def swish(x: Any, alpha: float = 1.0) -> Any:
    """`x` times the sigmoid of its multiple."""
    return x * jax.nn.sigmoid(alpha * x)


def clip(x: Any, min: float, max: float) -> Any:  # noqa: A002  the attributes' names
    """`x` within bounds, which are within its data type."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.minimum(jnp.maximum(x, min), max)
    smallest, largest = integer_range(DataType(x.dtype.name))
    low, high = (_within(value, smallest, largest) for value in (min, max))
    return jnp.minimum(jnp.maximum(x, jnp.asarray(low, x.dtype)), jnp.asarray(high, x.dtype))


def _within(value: float, smallest: int, largest: int) -> int:
    return smallest if value <= smallest else largest if value >= largest else int(value)


ACTIVATIONS: Mapping[str, Callable[..., Any]] = {
    "relu": lambda x: jnp.maximum(x, 0),
    "clip": clip,
    "sigmoid": jax.nn.sigmoid,
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": lambda x, alpha, beta: x * hard_sigmoid(x, alpha, beta),
    "tanh": jnp.tanh,
    "leaky_relu": leaky_relu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, "tanh"),
    "swish": swish,
}
"""What `fuse_code` names, called with `fuse_parameters`."""
