"""Recurrent layers: a loop of XLA's over the steps, with what does not depend on the step before taken out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.activations import elu, hard_sigmoid, leaky_relu, softplus, softsign
from nnadapter.drivers.xla.lowerings.closing import ALL_FLOATS, computes
from nnadapter.ir.named_operation import NamedOperation

_Gate = Callable[[Any], Any]
_Step = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""What the inputs of a step come to, and states -> the states behind it."""

_GATES: Mapping[str, Callable[[Any, float, float], Any]] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha, beta: elu(x, alpha),
    "hard_sigmoid": hard_sigmoid,
    "leaky_relu": lambda x, alpha, beta: leaky_relu(x, alpha),
    "relu": lambda x, alpha, beta: jnp.maximum(x, 0),
    "scaled_tanh": lambda x, alpha, beta: alpha * jnp.tanh(beta * x),
    "sigmoid": lambda x, alpha, beta: jax.nn.sigmoid(x),
    "softplus": lambda x, alpha, beta: softplus(x),
    "softsign": lambda x, alpha, beta: softsign(x),
    "tanh": lambda x, alpha, beta: jnp.tanh(x),
    "thresholded_relu": lambda x, alpha, beta: jnp.where(x < alpha, 0, x),
}
_FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
"""How many functions a direction has."""


def _gate(name: str, alpha: float, beta: float, clip: float) -> _Gate:
    function = _GATES[name]
    if clip == float("inf"):
        return lambda x: function(x, alpha, beta)
    return lambda x: function(jnp.clip(x, -clip, clip), alpha, beta)


def _gates(type_: str, direction: int, attributes: Mapping[str, Any]) -> list[_Gate]:
    """The functions of a direction; the LSTM's hidden function is not clipped."""
    count, names = _FUNCTIONS[type_], attributes["activations"].split()
    alphas, betas = ((*attributes[f"activation_{name}"], *(0.0,) * len(names)) for name in ("alpha", "beta"))
    clips = [attributes["clip"]] * count if count < 3 else [attributes["clip"]] * 2 + [float("inf")]
    places = range(direction * count, (direction + 1) * count)
    return [_gate(names[place], alphas[place], betas[place], clip) for place, clip in zip(places, clips, strict=True)]


def _lstm(r: Any, b: Any, p: Any, gates: Sequence[_Gate], input_forget: bool) -> _Step:
    (f, g, h), (of_input, of_output, of_forget) = gates, jnp.split(p, 3)

    def step(x: Any, states: Sequence[Any]) -> Sequence[Any]:
        hidden, cell = states
        i, o, forget, c = jnp.split(x + hidden @ r.T + b, 4, -1)
        i = f(i + of_input * cell)
        forget = 1 - i if input_forget else f(forget + of_forget * cell)
        cell = forget * cell + i * g(c)
        return f(o + of_output * cell) * h(cell), cell

    return step


def _gru(r: Any, b: Any, p: Any, gates: Sequence[_Gate], linear_before_reset: bool) -> _Step:
    (f, g), units = gates, r.shape[1]
    of_gates, of_hidden = r[: 2 * units].T, r[2 * units :].T

    def step(x: Any, states: Sequence[Any]) -> Sequence[Any]:
        (hidden,) = states
        z, reset = jnp.split(f(x[:, : 2 * units] + hidden @ of_gates + b[: 2 * units]), 2, -1)
        more = b[2 * units :]
        back = reset * (hidden @ of_hidden + more) if linear_before_reset else (reset * hidden) @ of_hidden + more
        return ((1 - z) * g(x[:, 2 * units :] + back) + z * hidden,)

    return step


def _rnn(r: Any, b: Any, p: Any, gates: Sequence[_Gate], flag: Any) -> _Step:
    return lambda x, states: (gates[0](x + states[0] @ r.T + b),)


_STEPS: Mapping[str, tuple[Callable[..., _Step], str, int]] = {
    "LSTM": (_lstm, "input_forget", 2),
    "GRU": (_gru, "linear_before_reset", 1),
    "RNN": (_rnn, "", 1),
}


def _along(step: _Step, x: Any, first: Sequence[Any], lengths: Any, backwards: bool) -> tuple[Sequence[Any], Any]:
    """States behind all steps, and what each step gives; behind its end a sequence stays as it is and gives 0."""
    if lengths is None:

        def carried(states: Any, given: Any) -> Any:
            after = tuple(step(given, states))
            return after, after[0]

        return jax.lax.scan(carried, tuple(first), x, reverse=backwards)  # type: ignore[no-any-return]

    def kept(states: Any, given: Any) -> Any:
        inputs, time = given
        running = (time < lengths)[:, None]
        after = tuple(jnp.where(running, new, old) for new, old in zip(step(inputs, states), states, strict=True))
        return after, jnp.where(running, after[0], 0)

    return jax.lax.scan(kept, tuple(first), (x, jnp.arange(len(x))), reverse=backwards)  # type: ignore[no-any-return]


def _recurrent(type_: str) -> Callable[..., Any]:
    make, flag, count = _STEPS[type_]

    def run(
        x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, c: Any = None, p: Any = None,
        **attributes: Any,
    ) -> Any:  # fmt: skip
        (_, batch, _), (directions, _, units) = x.shape, r.shape
        b = jnp.zeros((directions, 2 * w.shape[1]), x.dtype) if b is None else b
        p = jnp.zeros((directions, 3 * units), x.dtype) if p is None else p
        empty = jnp.zeros((directions, batch, units), x.dtype)
        first = [empty if state is None else state for state in (h, c)][:count]
        outputs, last = [], []
        for direction in range(directions):
            of_input, of_hidden = jnp.split(b[direction], 2)
            gates = _gates(type_, direction, attributes)
            step = make(r[direction], of_hidden, p[direction], gates, attributes.get(flag))
            backwards = direction == 1 or attributes["direction"] == "reverse"
            given = x @ w[direction].T + of_input
            states, output = _along(step, given, [state[direction] for state in first], lengths, backwards)
            outputs.append(output)
            last.append(states)
        return [jnp.stack(outputs, 1), *(jnp.stack(states) for states in zip(*last, strict=True))]

    return run


@lowers(*_STEPS, types=ALL_FLOATS)
def lower_recurrent(operation: NamedOperation) -> Computes:
    """Layers that go along a sequence."""
    return computes(operation, _recurrent(operation.type))
