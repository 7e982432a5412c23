"""Seeded random inputs for a model, where nobody has real ones at hand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array
from nnadapter.offering.preparing import prepare
from nnadapter.onnx.files import load_model
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.preparation.sizes import default_shapes
from partition.graph import Value

if TYPE_CHECKING:
    import onnx

SEED = 0


def random_feed(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = SEED,
) -> dict[str, Array]:
    """Return an array for every input that must be fed.

    Floats are uniform in [0, 1), integers are 0 or 1 (they may be indices), booleans fair.

    Raises:
        InvalidInputError: sizes do not fit, or an input is no tensor of numbers.
    """
    requested_shapes = {name: tuple(int(size) for size in shape) for name, shape in (input_shapes or {}).items()}
    return feed_for(prepare(load_model(model)), requested_shapes, seed)


def feed_for(prepared: Prepared, requested_shapes: Mapping[str, tuple[int, ...]], seed: int = SEED) -> dict[str, Array]:
    """See `random_feed`."""
    shapes = default_shapes(prepared, requested_shapes)
    generator = np.random.default_rng(seed)
    return {
        name: random_array(prepared.graph.value(name), shapes.get(name), generator)
        for name in prepared.graph.inputs
        if name not in prepared.defaults
    }


def random_array(value: Value, shape: tuple[int, ...] | None, generator: np.random.Generator) -> Array:
    """Return an array for one input."""
    if shape is None or value.dtype is None or value.dtype == "string" or "(" in value.dtype:
        raise InvalidInputError(
            f"input {value.name!r} is {value.dtype or 'of no type'}, for which no numbers can be made up; feed it",
            name=value.name,
        )
    dtype = np.dtype(value.dtype)
    if dtype.kind in "iub" and value.dtype not in ("int4", "uint4"):
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.random(shape, np.float32).astype(dtype)
