"""Recurrent layers: one product for all inputs, then a cell call per step.

Sizes: steps T, batch B, hidden units H, gates G. A cell computes one step of one direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import FUNCTIONS, Function, NumpyKernel
from nnadapter.ir.operand import Array

States = tuple[Array, ...]
"""Hidden state [B, H], and cell state for LSTM."""
Step = Callable[[Array, States], States]
"""Input products [B, G * H], previous states -> next states."""
Gate = partial[Array]


def _recurrent(
    output: Array,
    *last_states: Array,
    make_cell: Callable[..., Step],
    input: Array,  # noqa: A002  the role's name
    weights: Array,
    recurrent_weights: Array,
    bias: Array | None = None,
    sequence_lengths: Array | None = None,
    initial_hidden: Array | None = None,
    initial_cell: Array | None = None,
    peepholes: Array | None = None,
    direction: str,
    clip: float,
    functions: tuple[str, ...],
    **parameters: Any,
) -> None:
    """Compute each direction. After the end of a sequence, its states stay constant and its outputs are 0."""
    directions, hidden = len(weights), recurrent_weights.shape[-1]
    arguments = [tuple(parameters.pop(f"arguments_{index}")) for index in range(len(functions))]
    per_direction = len(functions) // directions
    lengths = None if sequence_lengths is None else sequence_lengths[:, None]
    for index in range(directions):
        some = slice(index * per_direction, (index + 1) * per_direction)
        cell = make_cell(
            [partial(_gate, *each, clip=clip) for each in zip(functions[some], arguments[some], strict=True)],
            recurrent_weights[index],
            bias=np.zeros(2 * len(weights[index]), input.dtype) if bias is None else bias[index],
            peepholes=None if peepholes is None else peepholes[index].reshape(3, -1),
            **parameters,
        )
        products = np.matmul(input, weights[index].T)
        firsts = (initial_hidden, initial_cell)[: len(last_states)]
        shape = (input.shape[1], hidden)
        states: States = tuple(np.zeros(shape, input.dtype) if each is None else each[index] for each in firsts)
        steps = range(len(output))
        for step in reversed(steps) if index == 1 or direction == "reverse" else steps:
            next_states = cell(products[step], states)
            if lengths is None:
                states, output[step, index] = next_states, next_states[0]
            else:
                active = lengths > step
                states = tuple(
                    np.where(active, next_state, previous_state)
                    for next_state, previous_state in zip(next_states, states, strict=True)
                )
                output[step, index] = np.where(active, states[0], 0)
        for last, state in zip(last_states, states, strict=True):
            last[index] = state


def _gate(function: str, arguments: tuple[float, ...], x: Array, *, clip: float) -> Array:
    if np.isfinite(clip):
        x = np.clip(x, -clip, clip)
    compute: Function = _GATES.get(function) or FUNCTIONS[function]
    return compute(x, *arguments)


_GATES: Mapping[str, Function] = {"thresholded_relu": lambda x, alpha: np.where(x < alpha, x.dtype.type(0), x)}
"""Gate functions that differ from the adapter IR operation of the same name."""


def _lstm_cell(gates: list[Gate], weights: Array, *, bias: Array, peepholes: Array | None, input_forget: bool) -> Step:
    open_gate, new_value, squash = gates
    # as in ONNX Runtime; ONNX would clip these too
    squash = partial(squash, clip=np.inf)
    offset = sum(np.split(bias, 2))
    look_in, look_out, look_forget = (0, 0, 0) if peepholes is None else peepholes

    def step(products: Array, states: States) -> States:
        hidden, cell = states
        into, out, forget, candidate = np.split(products + np.matmul(hidden, weights.T) + offset, 4, axis=-1)
        into = open_gate(into + cell * look_in)
        forget = 1 - into if input_forget else open_gate(forget + cell * look_forget)
        cell = forget * cell + into * new_value(candidate)
        return open_gate(out + cell * look_out) * squash(cell), cell

    return step


def _gru_cell(gates: list[Gate], weights: Array, *, bias: Array, peepholes: None, linear_before_reset: bool) -> Step:
    open_gate, new_value = gates
    input_bias, state_bias = (np.split(half, 3) for half in np.split(bias, 2))
    update_weights, reset_weights, new_weights = np.split(weights, 3)

    def step(products: Array, states: States) -> States:
        (hidden,) = states
        update, reset, candidate = np.split(products, 3, axis=-1)
        update = open_gate(update + np.matmul(hidden, update_weights.T) + input_bias[0] + state_bias[0])
        reset = open_gate(reset + np.matmul(hidden, reset_weights.T) + input_bias[1] + state_bias[1])
        if linear_before_reset:
            recurrence = reset * (np.matmul(hidden, new_weights.T) + state_bias[2])
        else:
            recurrence = np.matmul(reset * hidden, new_weights.T) + state_bias[2]
        candidate = new_value(candidate + input_bias[2] + recurrence)
        return (update * (hidden - candidate) + candidate,)

    return step


def _rnn_cell(gates: list[Gate], weights: Array, *, bias: Array, peepholes: None) -> Step:
    offset = sum(np.split(bias, 2))

    def step(products: Array, states: States) -> States:
        return (gates[0](products + np.matmul(states[0], weights.T) + offset),)

    return step


KERNELS: Mapping[str, NumpyKernel] = {
    "gru": NumpyKernel(partial(_recurrent, make_cell=_gru_cell)),
    "lstm": NumpyKernel(partial(_recurrent, make_cell=_lstm_cell)),
    "rnn": NumpyKernel(partial(_recurrent, make_cell=_rnn_cell)),
}
