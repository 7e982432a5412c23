"""Seeded inputs for a model, with which its operations can be run."""

from __future__ import annotations

import numpy as np

from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, OperandType

_LARGEST_INDEX = 4


def sample_inputs(model: Model, seed: int = 0) -> list[Array]:
    """Return one array per model input, the same for the same seed.

    Floating-point numbers are standard normal; integers of 8 bits and less, and bools, any value; other integers may
    be indices, so they are from 0 to what every axis along which an operation reads with them has, at most 4 numbers.

    Args:
        model: its inputs have plain dimensions.
        seed: of numpy's generator.
    """
    generator = np.random.default_rng(seed)
    return [_sample(generator, model.operands[index].type, _limit(model, index)) for index in model.inputs]


def _sample(generator: np.random.Generator, type_: OperandType, limit: int) -> Array:
    dtype, dimensions = np.dtype(type_.dtype.value), type_.dimensions
    if type_.dtype.is_floating:
        return np.asarray(generator.standard_normal(dimensions)).astype(dtype)
    if type_.dtype.itemsize > 1:
        return np.asarray(generator.integers(0, limit, dimensions)).astype(dtype)
    bits = round(8 * type_.dtype.itemsize)
    lowest = 0 if dtype.name.startswith(("u", "b")) else -(2 ** (bits - 1))
    count = 2 if dtype == np.bool_ else 2**bits
    return np.asarray(generator.integers(lowest, lowest + count, dimensions)).astype(dtype)


def _limit(model: Model, index: int) -> int:
    """The smallest axis along which the operand's elements may be positions."""
    limit = _LARGEST_INDEX
    for reader in model.consumers.get(index, ()):
        operation = model.operations[reader]
        if "axis" in operation.attributes and index in operation.inputs[1:]:
            dimensions = model.operands[operation.inputs[0]].type.dimensions
            limit = min(limit, dimensions[int(operation.attributes["axis"])])  # type: ignore[arg-type]
    return max(limit, 1)
