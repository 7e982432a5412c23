"""Seeded random inputs of models."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.candidates.conversions import prepare
from nnadapter.errors import InvalidInputError
from nnadapter.ir import Array
from nnadapter.onnx.files import load_model
from nnadapter.onnx.preparation.default_sizes import check_known_rank, default_shapes
from nnadapter.onnx.preparation.prepare import Prepared
from partition import Value

if TYPE_CHECKING:
    import onnx


SEED = 0
_FEW_BITS = {"int2": (-2, 2), "uint2": (0, 4), "int4": (-8, 8), "uint4": (0, 16)}
Maker = Callable[[Value, tuple[int, ...] | None, "np.random.Generator"], Array]


def random_feed(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = SEED,
) -> dict[str, Array]:
    """Return a random array for every input that has no default.

    Floats are uniform in [0, 1). Integers are 0 or 1, as they may be indices; sub-byte ones are uniform.

    Raises:
        InvalidInputError: sizes do not fit, or an input is no tensor of numbers.
    """
    requested_shapes = {name: tuple(int(size) for size in shape) for name, shape in (input_shapes or {}).items()}
    return feed_for(prepare(load_model(model)), requested_shapes, seed)


def feed_for(
    prepared: Prepared,
    requested_shapes: Mapping[str, tuple[int, ...]],
    seed: int = SEED,
    *,
    make: Maker | None = None,
    further_inputs: Collection[str] = (),
) -> dict[str, Array]:
    """Return an array for every input that has no default or is in `further_inputs`; see `random_feed`."""
    make = make or random_array
    shapes = default_shapes(prepared, requested_shapes)
    generator = np.random.default_rng(seed)
    return {
        name: make(prepared.graph.value(name), shapes.get(name), generator)
        for name in prepared.graph.inputs
        if name not in prepared.defaults or name in further_inputs
    }


def random_array(value: Value, shape: tuple[int, ...] | None, generator: np.random.Generator) -> Array:
    """Return a random array for one input."""
    if value.dtype != "string":
        check_known_rank(value, shape)
    if shape is None or value.dtype is None or value.dtype == "string" or "(" in value.dtype:
        raise InvalidInputError(
            f"input {value.name!r} is {value.dtype or 'of no type'}, which cannot be filled with random numbers; "
            f"feed it, on the command line with --input {value.name}=FILE.npy",
            name=value.name,
        )
    dtype = np.dtype(value.dtype)
    try:
        if dtype.kind in "iub":
            return generator.integers(0, 2, shape).astype(dtype)
        if value.dtype in _FEW_BITS:
            return generator.integers(*_FEW_BITS[value.dtype], shape).astype(dtype)
        return generator.random(shape, np.float32).astype(dtype)
    except (MemoryError, ValueError) as error:
        raise InvalidInputError(
            f"input {value.name!r} of shape {list(shape)} does not fit in memory; give a smaller shape", name=value.name
        ) from error
