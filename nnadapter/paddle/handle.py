"""Paddle's handles of inputs and outputs: arrays that are copied in and out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array
from nnadapter.paddle.types import DataType, data_type_of


class Tensor:
    """One input or output of a predictor. Source: paddle.inference.Tensor.

    Args:
        name: of the input or output.
        dtype: that the model declares, as numpy calls it.
        get: gives what an output holds, None before a run; None for an input.
    """

    def __init__(self, name: str, dtype: str, get: Callable[[], Array | None] | None = None) -> None:
        self._name, self._dtype, self._get = name, dtype, get
        self._value: Array | None = None
        self._shape: list[int] = []

    @property
    def value(self) -> Array | None:
        """What it holds; None where that is nothing. Not in Paddle."""
        return self._value if self._get is None else self._get()

    def name(self) -> str:
        """The name of the input or output."""
        return self._name

    def reshape(self, shape: Sequence[int] | int) -> None:
        """Set the shape of an input. What it holds stays where it fills that, as in Paddle; else it holds nothing."""
        self._refuse_output("reshape")
        self._shape = [shape] if isinstance(shape, int) else [int(size) for size in shape]
        size = prod(self._shape)
        value = self._value
        self._value = None if value is None or value.size < size else value.reshape(-1)[:size].reshape(self._shape)

    def copy_from_cpu(self, data: Array | Sequence[str]) -> None:
        """Copy an array, or a list of strings, into an input, which gets its shape."""
        self._refuse_output("copy_from_cpu")
        self._value = np.array(_array(data, "copy_from_cpu"), order="C")
        self._shape = list(self._value.shape)

    def share_external_data(self, data: Any) -> None:
        """Have an input hold an array itself, or a tensor that numpy reads without a copy."""
        self._refuse_output("share_external_data")
        self._value = np.asarray(data)
        self._shape = list(self._value.shape)

    def copy_to_cpu(self) -> Array:
        """Return a copy of what it holds.

        Raises:
            InvalidInputError: that is nothing: no run came before.
        """
        if self.value is None:
            raise InvalidInputError(f"{self._name!r} holds nothing; call Predictor.run first", name=self._name)
        return np.array(self.value)

    def shape(self) -> list[int]:
        """The shape: of an output, that of the last run."""
        if self._get is None:
            return list(self._shape)
        return [] if self.value is None else list(self.value.shape)

    def type(self) -> DataType:
        """The data type: of what it holds, else what the model declares."""
        return data_type_of(self._dtype if self.value is None else self.value.dtype.name)

    def lod(self) -> list[list[int]]:
        """Paddle's offsets of sequences of different lengths, which no model here has: none."""
        return []

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Take none; see `lod`.

        Raises:
            InvalidInputError: there are some.
        """
        if any(map(len, lod)):
            raise InvalidInputError(
                f"input {self._name!r} is given offsets of sequences, which no model here has; pad the sequences",
                name=self._name,
            )

    def _refuse_output(self, method: str) -> None:
        if self._get is not None:
            raise InvalidInputError(f"{method} is for inputs, and {self._name!r} is an output", name=self._name)


def _array(data: Any, method: str) -> Array:
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, list) and data and all(isinstance(element, str) for element in data):
        return np.array(data, object)
    raise TypeError(f"{method} takes a numpy array or a list of strings, got {type(data).__name__}")
