"""Seeded random inputs for a model, where nobody has real ones at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array
from nnadapter.offering.preparing import prepare
from nnadapter.onnx.files import load_model
from nnadapter.onnx.preparation.default_sizes import check_known_rank, default_shapes
from nnadapter.onnx.preparation.prepare import Prepared
from partition.graph import Value

if TYPE_CHECKING:
    import onnx

SEED = 0
_FEW_BITS = {"int2": (-2, 2), "uint2": (0, 4), "int4": (-8, 8), "uint4": (0, 16)}
"""Integers that are no indices: the smallest, and one beyond the largest."""
Maker = Callable[[Value, tuple[int, ...] | None, "np.random.Generator"], Array]
"""Makes an array for an input of a shape, which is None if it has none."""


def random_feed(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = SEED,
) -> dict[str, Array]:
    """Return an array for every input that must be fed.

    Floats are uniform in [0, 1), booleans fair; integers are 0 or 1 (they may be indices), of up to 4 bits any number.

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
    besides: Collection[str] = (),
) -> dict[str, Array]:
    """Return an array for every input that must be fed, and for those in `besides`; see `random_feed`.

    Args:
        prepared: the model.
        requested_shapes: of inputs whose sizes the model leaves open.
        seed: of the random numbers.
        make: makes one; random numbers if none is given.
        besides: inputs that need not be fed.
    """
    make = make or random_array
    shapes = default_shapes(prepared, requested_shapes)
    generator = np.random.default_rng(seed)
    return {
        name: make(prepared.graph.value(name), shapes.get(name), generator)
        for name in prepared.graph.inputs
        if name not in prepared.defaults or name in besides
    }


def random_array(value: Value, shape: tuple[int, ...] | None, generator: np.random.Generator) -> Array:
    """Return an array for one input."""
    if value.dtype != "string":
        check_known_rank(value, shape)
    if shape is None or value.dtype is None or value.dtype == "string" or "(" in value.dtype:
        raise InvalidInputError(
            f"input {value.name!r} is {value.dtype or 'of no type'}, for which no numbers can be made up; feed it, on "
            f"the command line by --input {value.name}=FILE.npy",
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
