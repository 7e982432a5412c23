"""What the reference says of an operation beside its row: meanings, a formula, an example, traps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array, DataType, Quantization, QuantizedType


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Inputs and attributes to try an operation with; results are computed, never written down."""

    inputs: tuple[Array | None, ...]
    """By role, None where an optional one is absent."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """What is not given takes its default."""
    quantizations: tuple[Quantization | None, ...] = ()
    """By input; what is left out is not quantized."""
    results: tuple[QuantizedType | None, ...] = ()
    """By output, for those that are quantized and whose type no shape rule tells."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationDoc:
    """What a person needs to implement an operation, beside its row of the schema table."""

    summary: str
    """What it does, in a sentence or two."""
    formula: str
    """The result in terms of inputs and attributes, as plain text."""
    inputs: Mapping[str, str]
    """By role."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """By name."""
    outputs: Mapping[str, str]
    """By name."""
    example: Example
    traps: tuple[str, ...] = ()
    """What one gets wrong, sentence by sentence."""
    flops: str = ""
    """The FLOP formula in words, where it is not so many steps per element."""


def tensor(values: object, dtype: str | None = None) -> Array:
    """Return an array of nested lists; without a data type, numbers with a point are float32, whole ones int64."""
    array: np.ndarray[Any, Any] = np.array(values)
    if dtype is None:
        dtype = {"f": "float32", "i": "int64", "b": "bool"}[array.dtype.kind]
    return array.astype(DataType(dtype).array_type)


def counting(*dimensions: int) -> Array:
    """Return 1, 2, 3, … as float32 of these dimensions."""
    return np.arange(1, 1 + int(np.prod(dimensions)), dtype=np.float32).reshape(dimensions)


LIKE_INPUT = {"output": "Data type, dimensions and layout of `input`."}
"""The output of operations that change elements one by one."""
AXIS = "The axis, from 0 to rank - 1. Negative ones are refused: converters have resolved them."
"""An attribute of many operations."""
FUSED: Mapping[str, str] = {
    "fuse_code": "Activation of the result r, before it is rounded to its data type. `none`: r. `relu`: max(r, 0)."
    " `clip`: min(max(r, min), max). `sigmoid`, `tanh`, `hard_sigmoid`, `hard_swish`, `leaky_relu`: as the operations"
    " of these names. `swish`: r * sigmoid(r). `gelu`: by erf. `gelu_tanh`: GELU with approximate tanh.",
    "fuse_parameters": "Attributes of the activation: (min, max) for `clip`, (alpha, beta) for `hard_sigmoid` and"
    " `hard_swish`, (alpha,) for `leaky_relu`; none for the others.",
}
"""The attributes of operations that can fuse an activation."""
FUSED_INTEGERS = (
    "On integers, fuse_code may be `none`, `relu` or `clip` alone; limits of `clip` are taken as CLIP takes them."
)
"""A trap of operations that can fuse an activation and take integers."""
