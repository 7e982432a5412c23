"""Reference implementations: recurrent layers, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from nnadapter.ir.definition.elementwise import elu, hard_sigmoid, leaky_relu, sigmoid, softplus, softsign
from nnadapter.ir.operand import Array

_Gate = Callable[[Array], Array]


def gate_functions(xp: Any, sigmoid: Callable[[Any], Any]) -> Mapping[str, Callable[[Any, float, float], Any]]:
    """Return the gate functions of recurrent layers over an array namespace."""
    return {
        "affine": lambda x, alpha, beta: alpha * x + beta,
        "elu": lambda x, alpha, beta: elu(xp, x, alpha),
        "hard_sigmoid": partial(hard_sigmoid, xp),
        "leaky_relu": lambda x, alpha, beta: leaky_relu(xp, x, alpha),
        "relu": lambda x, alpha, beta: xp.maximum(x, 0),
        "scaled_tanh": lambda x, alpha, beta: alpha * xp.tanh(beta * x),
        "sigmoid": lambda x, alpha, beta: sigmoid(x),
        "softplus": lambda x, alpha, beta: softplus(xp, x),
        "softsign": lambda x, alpha, beta: softsign(xp, x),
        "tanh": lambda x, alpha, beta: xp.tanh(x),
        "thresholded_relu": lambda x, alpha, beta: xp.where(x < alpha, 0, x),
    }


_GATES = gate_functions(np, sigmoid)


def _gate(name: str, alpha: float, beta: float, clip: float) -> _Gate:
    return lambda x: _GATES[name](np.clip(x, -clip, clip), alpha, beta)


def _gates(count: int, attributes: Mapping[str, Any], clip: float) -> list[list[_Gate]]:
    names = attributes["activations"].split()
    alphas, betas = ((*attributes[f"activation_{name}"], *(0.0,) * len(names)) for name in ("alpha", "beta"))
    gates = [_gate(name, alphas[index], betas[index], clip) for index, name in enumerate(names)]
    return [gates[start : start + count] for start in range(0, len(gates), count)]


def _lstm_step(x, states, w, r, b, p, gates, input_forget):  # type: ignore[no-untyped-def]
    (hidden, cell), (f, g, h) = states, gates
    i, o, forget, c = np.split(x @ w.T + hidden @ r.T + b[0] + b[1], 4, -1)
    i = f(i + p[0] * cell)
    forget = 1 - i if input_forget else f(forget + p[2] * cell)
    cell = forget * cell + i * g(c)
    return f(o + p[1] * cell) * h(cell), cell


def _gru_step(x, states, w, r, b, p, gates, linear_before_reset):  # type: ignore[no-untyped-def]
    (hidden,), (f, g) = states, gates
    (wz, wr, wh), (rz, rr, rh), (b0, b1) = np.split(w, 3), np.split(r, 3), (np.split(part, 3) for part in b)
    z = f(x @ wz.T + hidden @ rz.T + b0[0] + b1[0])
    reset = f(x @ wr.T + hidden @ rr.T + b0[1] + b1[1])
    back = reset * (hidden @ rh.T + b1[2]) if linear_before_reset else (reset * hidden) @ rh.T + b1[2]
    return ((1 - z) * g(x @ wh.T + back + b0[2]) + z * hidden,)


def _rnn_step(x, states, w, r, b, p, gates, flag):  # type: ignore[no-untyped-def]
    return (gates[0](x @ w.T + states[0] @ r.T + b[0] + b[1]),)


def _recurrent(step: Any, functions: int, states: int, flag: str) -> Callable[..., list[Array]]:
    def run(x, w, r, b=None, lengths=None, h=None, c=None, p=None, **attributes):  # type: ignore[no-untyped-def]
        (steps, batch, _), (directions, _, units) = x.shape, r.shape
        b = np.zeros((directions, 2 * w.shape[1])) if b is None else b
        p = np.zeros((directions, 3 * units)) if p is None else p
        lengths = np.full(batch, steps) if lengths is None else lengths
        first = [
            np.zeros((directions, batch, units)) if initial_state is None else initial_state for initial_state in (h, c)
        ][:states]
        output = np.zeros((steps, directions, batch, units))
        last = [state.astype(np.float64) for state in first]
        gates = _gates(functions, attributes, attributes["clip"])
        if functions == 3:  # the LSTM's hidden function is not clipped
            gates = [
                [*clipped[:2], free[2]] for clipped, free in zip(gates, _gates(3, attributes, np.inf), strict=True)
            ]
        for direction in range(directions):
            for item in range(batch):
                order = range(lengths[item])
                backwards = direction == 1 or attributes["direction"] == "reverse"
                for t in reversed(order) if backwards else order:
                    weights = w[direction], r[direction], np.split(b[direction], 2), np.split(p[direction], 3)
                    states_in = [state[direction, item] for state in last]
                    states_out = step(x[t, item], states_in, *weights, gates[direction], attributes.get(flag))
                    for state, value in zip(last, states_out, strict=True):
                        state[direction, item] = value
                    output[t, direction, item] = states_out[0]
        return [output, *last]

    return run


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "LSTM": _recurrent(_lstm_step, 3, 2, "input_forget"),
    "GRU": _recurrent(_gru_step, 2, 1, "linear_before_reset"),
    "RNN": _recurrent(_rnn_step, 1, 1, ""),
}

DOCS = """\
# *
input: [T, B, I]. Steps T, batch B, features I, directions D (1 or 2), hidden units H.
sequence_lengths: [B], 0 to T: number of steps of each sequence; absent: T.
initial_hidden: [D, B, H]: the hidden state before the first step; absent: zeros.
direction: `forward`: from step 0. `reverse`: from the last step. `bidirectional`: both, D = 2, forward first.
activation_alpha: One number per name in `activations`, or () if no function uses it.
activation_beta: The same for the second parameter.
clip: Arguments of functions are clipped to -clip and clip.
-> output: [T, D, B, H]: the hidden state after every step; zeros after the end of a sequence.
-> hidden: [D, B, H]: the hidden state after the last step of each sequence.
# LSTM: A long short-term memory layer over entire sequences.
| per step, x = input[t], h and c the states; W, R, b, P: the gate's weights, recurrent weights, both biases added, \
peephole
| i = f(W_i x + R_i h + b_i + P_i * c)
| forget = f(W_f x + R_f h + b_f + P_f * c), or 1 - i with input_forget
| c' = forget * c + i * g(W_c x + R_c h + b_c)
| o = f(W_o x + R_o h + b_o + P_o * c')
| h' = o * h_function(c')
weights: [D, 4H, I]; gates in the order input, output, forget, cell.
recurrent_weights: [D, 4H, H]; gates in that order.
bias: [D, 8H]: biases of the weights, then of the recurrent weights; absent: zeros.
initial_cell: [D, B, H]: the cell state before the first step; absent: zeros.
peepholes: [D, 3H]: for the input, output and forget gate, elementwise; absent: zeros.
activations: Names separated by spaces, per direction: gates f, cell g, hidden. Any of affine, elu, hard_sigmoid,
  leaky_relu, relu, scaled_tanh, sigmoid, softplus, softsign, tanh, thresholded_relu.
input_forget: True: the forget gate is 1 minus the input gate.
-> cell: [D, B, H]: the cell state after the last step of each sequence.
- Gates are input, output, forget, cell. PyTorch's order is input, forget, cell, output.
- The peephole of the output gate uses the new cell state, the others the old one.
- clip applies to f and g, not to the hidden function.
- alpha and beta: affine alpha * x + beta; scaled_tanh alpha * tanh(beta * x); hard_sigmoid max(0, min(1, alpha * x +
  beta)); thresholded_relu x if x >= alpha, else 0; leaky_relu and elu as the operations.
- In reverse, a sequence begins at its own last step, lengths[b] - 1. Results are at the index of their step.
- After its end, a sequence gives zeros, and its states do not change.
- Dimensions are in ONNX's layout 0: steps first.
FLOPs: (4 * (2I + 2H + 2) + 10) per output element
example: [[[1.0]], [[2.0]]], [[[1.0], [1.0], [1.0], [1.0]]], [[[0.5], [0.5], [0.5], [0.5]]]
# GRU: A layer of gated recurrent units over entire sequences.
| per step, x = input[t], h the state; W, R: the gate's weights, bw and br: its two biases
| z = f(W_z x + R_z h + bw_z + br_z)
| r = f(W_r x + R_r h + bw_r + br_r)
| linear_before_reset false: n = g(W_h x + R_h (r * h) + br_h + bw_h)
| linear_before_reset true:  n = g(W_h x + r * (R_h h + br_h) + bw_h)
| h' = (1 - z) * n + z * h
weights: [D, 3H, I]; gates in the order update, reset, hidden.
recurrent_weights: [D, 3H, H]; gates in that order.
bias: [D, 6H]: biases of the weights, then of the recurrent weights; absent: zeros.
activations: Names separated by spaces, per direction: gates f, hidden g. Any of affine, elu, hard_sigmoid,
  leaky_relu, relu, scaled_tanh, sigmoid, softplus, softsign, tanh, thresholded_relu.
linear_before_reset: True: the reset gate is applied after the product, as in PyTorch and cuDNN.
- Gates are update, reset, hidden. PyTorch's order is reset, update, new.
- alpha and beta: affine alpha * x + beta; scaled_tanh alpha * tanh(beta * x); hard_sigmoid max(0, min(1, alpha * x +
  beta)); thresholded_relu x if x >= alpha, else 0; leaky_relu and elu as the operations.
- In reverse, a sequence begins at its own last step, lengths[b] - 1. Results are at the index of their step.
- After its end, a sequence gives zeros, and its states do not change.
- Dimensions are in ONNX's layout 0: steps first.
FLOPs: (3 * (2I + 2H + 2) + 7) per output element
example: [[[1.0]], [[2.0]]], [[[1.0], [1.0], [1.0]]], [[[0.5], [0.5], [0.5]]]
# RNN: A plain recurrent layer over entire sequences.
| h' = f(W x + R h + b), b: both biases added
weights: [D, H, I].
recurrent_weights: [D, H, H].
bias: [D, 2H]: biases of the weights, then of the recurrent weights; absent: zeros.
activations: Names separated by spaces, per direction: hidden f. Any of affine, elu, hard_sigmoid, leaky_relu,
  relu, scaled_tanh, sigmoid, softplus, softsign, tanh, thresholded_relu.
- alpha and beta: affine alpha * x + beta; scaled_tanh alpha * tanh(beta * x); hard_sigmoid max(0, min(1, alpha * x +
  beta)); thresholded_relu x if x >= alpha, else 0; leaky_relu and elu as the operations.
- In reverse, a sequence begins at its own last step, lengths[b] - 1. Results are at the index of their step.
- After its end, a sequence gives zeros, and its states do not change.
- Dimensions are in ONNX's layout 0: steps first.
FLOPs: (2I + 2H + 3) per output element
example: [[[1.0]], [[2.0]]], [[[1.0]]], [[[0.5]]], direction='reverse', activations='relu'
"""
