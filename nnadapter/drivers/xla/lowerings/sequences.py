"""Attention and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nnadapter.drivers.xla.lowerings.numerics import ALL_FLOATS, Function, computes, direct
from nnadapter.drivers.xla.lowerings.windows import with_bias
from nnadapter.ir.definition.recurrent import gate_functions


def _seen(queries: int, keys: int, lengths: Any, attributes: Mapping[str, Any]) -> Any:
    """Return a mask of the keys that each query sees, [batch, groups, heads, queries, keys]; None if all do."""
    offset: Any = attributes["offset"]
    places, conditions = jnp.arange(keys), []
    if lengths is not None:
        ends = lengths.reshape(-1, 1, 1, 1, 1)
        offset = ends - queries
        conditions.append(places < jnp.where(ends < 0, ends + keys, ends))  # negative lengths count from the end
    distance = places - (jnp.arange(queries)[:, None] + offset)
    if attributes["is_causal"]:
        conditions.append(distance <= 0)
    if attributes["left_window"] >= 0:
        conditions.append(-distance <= attributes["left_window"])
    if attributes["right_window"] >= 0:
        conditions.append(distance <= attributes["right_window"])
    visible = None
    for condition in conditions:
        visible = condition if visible is None else visible & condition
    return visible


def _masked(scores: Any, mask: Any, visible: Any) -> Any:
    batch, groups, repeats, queries, keys = scores.shape
    if mask is not None:
        full_mask = jnp.broadcast_to(mask, (batch, groups * repeats, queries, keys)).reshape(scores.shape)
        scores = jnp.where(full_mask, scores, -jnp.inf) if full_mask.dtype == bool else scores + full_mask
    return scores if visible is None else jnp.where(visible, scores, -jnp.inf)


def _attention(query: Any, key: Any, value: Any, mask: Any = None, lengths: Any = None, **attributes: Any) -> Any:
    (batch, heads, queries, size), (_, groups, keys, _) = query.shape, key.shape
    grouped = query.reshape(batch, groups, heads // groups, queries, size)
    stages = {"product": attributes["scale"] * jnp.einsum("bgrqd,bgkd->bgrqk", grouped, key)}
    cap = attributes["softcap"]
    stages["capped"] = cap * jnp.tanh(stages["product"] / cap) if cap > 0 else stages["product"]
    stages["masked"] = _masked(stages["capped"], mask, _seen(queries, keys, lengths, attributes))
    most = stages["masked"].max(-1, keepdims=True, initial=jnp.finfo(query.dtype).min)
    raised = jnp.exp(stages["masked"] - most)
    total = raised.sum(-1, keepdims=True)
    empty = jnp.nan if attributes["without_keys"] == "nan" else 0.0
    stages["softmax"] = jnp.where(total > 0, raised / jnp.where(total > 0, total, 1), empty)
    result = jnp.einsum("bgrqk,bgkd->bgrqd", stages["softmax"], value).reshape(batch, heads, queries, value.shape[-1])
    if attributes["scores"] == "none":
        return result
    return [result, stages[attributes["scores"]].reshape(batch, heads, queries, keys)]


def _rotary(x: Any, cosine: Any, sine: Any, interleaved: bool) -> Any:
    pairs = cosine.shape[-1]
    c, s = cosine[:, None], sine[:, None]
    rotated, unrotated = x[..., : 2 * pairs], x[..., 2 * pairs :]
    left, right = (rotated[..., ::2], rotated[..., 1::2]) if interleaved else jnp.split(rotated, 2, -1)
    both = c * left - s * right, s * left + c * right
    joined = jnp.stack(both, -1).reshape(rotated.shape) if interleaved else jnp.concatenate(both, -1)
    return jnp.concatenate([joined, unrotated], -1)


def _linear_attention(
    query: Any, key: Any, value: Any, past: Any = None, decay: Any = None, rate: Any = None, **attributes: Any
) -> Any:
    (batch, steps, _), heads, groups = query.shape, attributes["query_heads"], attributes["key_value_heads"]
    query = query.reshape(batch, steps, groups, heads // groups, query.shape[2] // heads)
    key, value = (array.reshape(batch, steps, groups, array.shape[2] // groups) for array in (key, value))
    state = jnp.zeros((batch, groups, key.shape[3], value.shape[3]), query.dtype) if past is None else past
    decay = jnp.zeros_like(key) if decay is None else decay.reshape(batch, steps, groups, decay.shape[2] // groups)
    decay = jnp.broadcast_to(decay, key.shape)
    delta = rate is not None
    rates = jnp.broadcast_to(rate if delta else jnp.ones(1, query.dtype), (batch, steps, groups))

    def step(memory: Any, inputs: Any) -> Any:
        q, k, v, fading, weight = inputs
        memory = jnp.exp(fading)[..., None] * memory
        change = v - jnp.einsum("bgkv,bgk->bgv", memory, k) if delta else v
        memory = memory + weight[..., None, None] * k[..., None] * change[..., None, :]
        return memory, attributes["scale"] * jnp.einsum("bgrk,bgkv->bgrv", q, memory)

    by_step = tuple(jnp.moveaxis(array, 1, 0) for array in (query, key, value, decay, rates))
    state, output = jax.lax.scan(step, state, by_step)
    return [jnp.moveaxis(output, 0, 1).reshape(batch, steps, heads * value.shape[-1]), state]


def _causal_convolution(x: Any, weight: Any, bias: Any = None, past: Any = None, *, activation: str) -> Any:
    taps = weight.shape[2]
    past = jnp.zeros((*x.shape[:2], taps - 1), x.dtype) if past is None else past
    padded = jnp.concatenate([past, x], 2)
    result = jax.lax.conv_general_dilated(
        padded, weight, (1,), [(0, 0)], dimension_numbers=("NCW", "OIW", "NCW"), feature_group_count=x.shape[1]
    )
    result = with_bias(result, bias, last=False)
    return [result * jax.nn.sigmoid(result) if activation == "swish" else result, padded[:, :, x.shape[2] :]]


lower_attention = direct({"ATTENTION": _attention}, computes, types=(*ALL_FLOATS, "bool", "int32", "int64"))
_RELATED: Mapping[str, Function] = {
    "ROTARY_EMBEDDING": _rotary,
    "LINEAR_ATTENTION": _linear_attention,
    "CAUSAL_CONV": _causal_convolution,
}
lower_related = direct(_RELATED, computes, types=ALL_FLOATS)


_Gate = Callable[[Any], Any]
_Step = Callable[[Any, Sequence[Any]], Sequence[Any]]

_GATES = gate_functions(jnp, jax.nn.sigmoid)


def _gate(name: str, alpha: float, beta: float, clip: float) -> _Gate:
    function = _GATES[name]
    if clip == float("inf"):
        return lambda x: function(x, alpha, beta)
    return lambda x: function(jnp.clip(x, -clip, clip), alpha, beta)


def _gates(count: int, direction: int, attributes: Mapping[str, Any]) -> list[_Gate]:
    """Return the `count` activation functions of a direction. All except the last of an LSTM clip their inputs."""
    names = attributes["activations"].split()
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


_STEPS: Mapping[str, tuple[Callable[..., _Step], str, int, int]] = {
    "LSTM": (_lstm, "input_forget", 2, 3),
    "GRU": (_gru, "linear_before_reset", 1, 2),
    "RNN": (_rnn, "", 1, 1),
}
"""Layer -> (factory of the step, the attribute it needs, number of states, number of activation functions)."""


def _along(step: _Step, x: Any, first: Sequence[Any], lengths: Any, backwards: bool) -> tuple[Sequence[Any], Any]:
    """Run `step` over time; return the final states, and all outputs, which are 0 after a sequence's end."""
    if lengths is None:

        def carried(states: Any, inputs: Any) -> Any:
            next_states = tuple(step(inputs, states))
            return next_states, next_states[0]

        return jax.lax.scan(carried, tuple(first), x, reverse=backwards)  # type: ignore[no-any-return]

    def padded(states: Any, timed_inputs: Any) -> Any:
        inputs, time = timed_inputs
        running = (time < lengths)[:, None]
        next_states = tuple(
            jnp.where(running, next_state, previous_state)
            for next_state, previous_state in zip(step(inputs, states), states, strict=True)
        )
        return next_states, jnp.where(running, next_states[0], 0)

    return jax.lax.scan(padded, tuple(first), (x, jnp.arange(len(x))), reverse=backwards)  # type: ignore[no-any-return]


def _recurrent(type_: str) -> Function:
    make, flag, states_count, gates_count = _STEPS[type_]

    def run(
        x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, c: Any = None, p: Any = None,
        **attributes: Any,
    ) -> Any:  # fmt: skip
        (_, batch, _), (directions, _, units) = x.shape, r.shape
        b = jnp.zeros((directions, 2 * w.shape[1]), x.dtype) if b is None else b
        p = jnp.zeros((directions, 3 * units), x.dtype) if p is None else p
        empty = jnp.zeros((directions, batch, units), x.dtype)
        first = [empty if state is None else state for state in (h, c)][:states_count]
        outputs, last = [], []
        for direction in range(directions):
            of_input, of_hidden = jnp.split(b[direction], 2)
            gates = _gates(gates_count, direction, attributes)
            step = make(r[direction], of_hidden, p[direction], gates, attributes.get(flag))
            backwards = direction == 1 or attributes["direction"] == "reverse"
            products = x @ w[direction].T + of_input
            states, output = _along(step, products, [state[direction] for state in first], lengths, backwards)
            outputs.append(output)
            last.append(states)
        return [jnp.stack(outputs, 1), *(jnp.stack(states) for states in zip(*last, strict=True))]

    return run


lower_recurrent = direct({type_: _recurrent(type_) for type_ in _STEPS}, computes, types=ALL_FLOATS)
