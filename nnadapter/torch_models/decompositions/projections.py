"""LSTM with projections, of which ONNX has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch._decomp.decompositions import lstm_impl

_DROPOUT, _TRAIN = 2, 3
"""Places among the arguments behind sequences, states and weights."""


def lstm(sequences: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *options: Any) -> Any:
    """Written in steps, as many as the length, where states are narrower than cells. Source: aten::lstm.input."""
    state, cell = states
    if state.shape[-1] == cell.shape[-1] or (options[_TRAIN] and options[_DROPOUT]):
        return NotImplemented
    return lstm_impl(sequences, states, weights, *options)
