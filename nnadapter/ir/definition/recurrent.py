"""Recurrent layers, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.definition.elementwise import elu, hard_sigmoid, leaky_relu, sigmoid, softplus, softsign
from nnadapter.ir.operand import Array

_Gate = Callable[[Array], Array]


_GATES: Mapping[str, Callable[[Array, float, float], Array]] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha, beta: elu(x, alpha),
    "hard_sigmoid": hard_sigmoid,
    "leaky_relu": lambda x, alpha, beta: leaky_relu(x, alpha),
    "relu": lambda x, alpha, beta: np.maximum(x, 0),
    "scaled_tanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "sigmoid": lambda x, alpha, beta: sigmoid(x),
    "softplus": lambda x, alpha, beta: softplus(x),
    "softsign": lambda x, alpha, beta: softsign(x),
    "tanh": lambda x, alpha, beta: np.tanh(x),
    "thresholded_relu": lambda x, alpha, beta: np.where(x < alpha, 0, x),
}


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
                    before = [state[direction, item] for state in last]
                    after = step(x[t, item], before, *weights, gates[direction], attributes.get(flag))
                    for state, value in zip(last, after, strict=True):
                        state[direction, item] = value
                    output[t, direction, item] = after[0]
        return [output, *last]

    return run


RECURRENT: Mapping[str, Callable[..., Any]] = {
    "LSTM": _recurrent(_lstm_step, 3, 2, "input_forget"),
    "GRU": _recurrent(_gru_step, 2, 1, "linear_before_reset"),
    "RNN": _recurrent(_rnn_step, 1, 1, ""),
}
"""By operation."""
