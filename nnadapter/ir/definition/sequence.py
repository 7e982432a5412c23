"""The interpreter's functions for recurrent layers, attention, norms, losses and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array

_Gate = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(x / 2))


_GATES: Mapping[str, Callable[[Array, float, float], Array]] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(x), x),
    "hard_sigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "leaky_relu": lambda x, alpha, beta: np.where(x < 0, alpha * x, x),
    "relu": lambda x, alpha, beta: np.maximum(x, 0),
    "scaled_tanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "sigmoid": lambda x, alpha, beta: _sigmoid(x),
    "softplus": lambda x, alpha, beta: np.logaddexp(0, x),
    "softsign": lambda x, alpha, beta: x / (1 + np.abs(x)),
    "tanh": lambda x, alpha, beta: np.tanh(x),
    "thresholded_relu": lambda x, alpha, beta: np.where(x < alpha, 0, x),
}


def _gate(name: str, alpha: float, beta: float, clip: float) -> _Gate:
    return lambda x: _GATES[name](np.clip(x, -clip, clip), alpha, beta)


def _gates(count: int, attributes: Mapping[str, Any], clip: float) -> list[list[_Gate]]:
    names = attributes["activations"].split()
    alphas, betas = ((*attributes[f"activation_{name}"], *(0.0,) * len(names)) for name in ("alpha", "beta"))
    found = [_gate(name, alphas[index], betas[index], clip) for index, name in enumerate(names)]
    return [found[start : start + count] for start in range(0, len(found), count)]


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
        first = [np.zeros((directions, batch, units)) if given is None else given for given in (h, c)][:states]
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


def _attention(query, key, value, mask=None, lengths=None, **attributes):  # type: ignore[no-untyped-def]
    (batch, heads, queries, _), (_, groups, keys, _) = query.shape, key.shape
    key, value = (np.repeat(array, heads // groups, 1) for array in (key, value))
    stages = {"product": attributes["scale"] * (query @ key.swapaxes(-1, -2))}
    cap = attributes["softcap"]
    stages["capped"] = cap * np.tanh(stages["product"] / cap) if cap > 0 else stages["product"]
    addition = np.zeros((batch, heads, queries, keys))
    if mask is not None:
        addition = addition + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    for item in range(batch):
        offset = attributes["offset"] if lengths is None else lengths[item] - queries
        distance = np.arange(keys) - (np.arange(queries)[:, None] + offset)
        if lengths is not None:
            addition[item, :, :, lengths[item] :] = -np.inf
        if attributes["is_causal"]:
            addition[item, :, distance > 0] = -np.inf
        for window, beyond in (("left_window", -distance), ("right_window", distance)):
            if attributes[window] >= 0:
                addition[item, :, beyond > attributes[window]] = -np.inf
    stages["masked"] = stages["capped"] + addition
    raised = np.exp(stages["masked"] - np.maximum(stages["masked"].max(-1, keepdims=True), -1e300))
    total = raised.sum(-1, keepdims=True)
    empty = np.nan if attributes["without_keys"] == "nan" else 0.0
    stages["softmax"] = np.divide(raised, total, out=np.full_like(raised, empty), where=total > 0)
    result = stages["softmax"] @ value
    return result if attributes["scores"] == "none" else [result, stages[attributes["scores"]]]


def _rotary(x: Array, cosine: Array, sine: Array, interleaved: bool) -> Array:
    pairs, result = cosine.shape[-1], x.copy()
    for pair in range(pairs):
        left, right = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        c, s = cosine[:, None, :, pair], sine[:, None, :, pair]
        result[..., left] = c * x[..., left] - s * x[..., right]
        result[..., right] = s * x[..., left] + c * x[..., right]
    return result


def _linear_attention(query, key, value, past=None, decay=None, rate=None, **attributes):  # type: ignore[no-untyped-def]
    (batch, steps, _), heads, groups = query.shape, attributes["query_heads"], attributes["key_value_heads"]
    query = query.reshape(batch, steps, heads, -1)
    key, value = (array.reshape(batch, steps, groups, -1) for array in (key, value))
    decay = np.zeros((batch, steps, groups)) if decay is None else decay
    decay = np.broadcast_to(decay.reshape(batch, steps, groups, -1), key.shape)
    delta = rate is not None
    rate = np.broadcast_to(rate if delta else np.ones(1), (batch, steps, groups))
    state = np.zeros((batch, groups, key.shape[3], value.shape[3])) if past is None else past.astype(np.float64)
    output = np.zeros((batch, steps, heads, value.shape[3]))
    for item, group in np.ndindex(batch, groups):
        memory = state[item, group]
        for t in range(steps):
            k, v = key[item, t, group], value[item, t, group]
            memory = np.exp(decay[item, t, group])[:, None] * memory
            memory = memory + rate[item, t, group] * np.outer(k, v - memory.T @ k if delta else v)
            for head in range(group * (heads // groups), (group + 1) * (heads // groups)):
                output[item, t, head] = attributes["scale"] * (query[item, t, head] @ memory)
        state[item, group] = memory
    return [output.reshape(batch, steps, -1), state]


def _causal_conv(x, weight, bias=None, past=None, *, activation):  # type: ignore[no-untyped-def]
    taps = weight.shape[2]
    past = np.zeros((*x.shape[:2], taps - 1)) if past is None else past
    padded = np.concatenate([past, x], 2)
    result = np.zeros(x.shape) if bias is None else np.broadcast_to(bias[:, None], x.shape).copy()
    for t in range(x.shape[2]):
        result[:, :, t] += (padded[:, :, t : t + taps] * weight[:, 0]).sum(-1)
    return [result * _sigmoid(result) if activation == "swish" else result, padded[:, :, x.shape[2] :]]


def _rms(x: Array, scale: Array, axis: int, epsilon: float) -> Any:
    return x / np.sqrt((x**2).mean(tuple(range(axis, x.ndim)), keepdims=True) + epsilon) * scale


def _lp(x: Array, axis: int, p: int) -> Any:
    norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)


def _mean_variance(x: Array, axes: Sequence[int], epsilon: float) -> Any:
    return (x - x.mean(tuple(axes), keepdims=True)) / (x.std(tuple(axes), keepdims=True) + epsilon)


def _likelihood(
    x: Array, target: Array, weight: Array | None = None, *, reduction: str, ignore_index: int | None
) -> Any:
    losses, weights = np.zeros(target.shape), np.zeros(target.shape)
    for place in np.ndindex(target.shape):
        label = target[place]
        if label != ignore_index:
            weights[place] = 1 if weight is None else weight[label]
            losses[place] = -weights[place] * x[place[0], label, *place[1:]]
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / weights.sum()}[reduction]


def _cross_entropy(x, target, weight=None, **attributes):  # type: ignore[no-untyped-def]
    shifted = x - x.max(1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return [_likelihood(logarithms, target, weight, **attributes), logarithms]


def _waves(length: int, sign: int) -> Any:
    return np.exp(sign * 2j * np.pi * np.outer(np.arange(length), np.arange(length)) / length)


def _dft(x: Array, axis: int, length: int, inverse: bool, onesided: bool) -> Array:
    numbers = np.moveaxis(x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0), axis, -1)
    full = np.zeros((*numbers.shape[:-1], length), np.complex128)
    kept = min(length, numbers.shape[-1])
    full[..., :kept] = numbers[..., :kept]
    if inverse and onesided:  # the other half is the conjugate of the first
        half = length // 2 + 1
        full[..., half:] = np.conj(full[..., 1 : length - half + 1][..., ::-1])
        full[..., 0] = full[..., 0].real
        if length % 2 == 0:
            full[..., length // 2] = full[..., length // 2].real
    result = full @ _waves(length, 1 if inverse else -1) / (length if inverse else 1)
    if onesided and not inverse:
        result = result[..., : length // 2 + 1]
    result = np.moveaxis(result, -1, axis)
    parts = [result.real] if onesided and inverse else [result.real, result.imag]
    return np.stack(parts, -1)


def _stft(x, window=None, *, frame_step, frame_length, onesided):  # type: ignore[no-untyped-def]
    starts = range(0, x.shape[1] - frame_length + 1, frame_step)
    factors = np.ones(frame_length) if window is None else window
    frames = [x[:, start : start + frame_length] * factors[:, None] for start in starts]
    return np.stack([_dft(frame, 1, frame_length, False, onesided) for frame in frames], 1)


SEQUENCE_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "LSTM": _recurrent(_lstm_step, 3, 2, "input_forget"),
    "GRU": _recurrent(_gru_step, 2, 1, "linear_before_reset"),
    "RNN": _recurrent(_rnn_step, 1, 1, ""),
    "ATTENTION": _attention,
    "ROTARY_EMBEDDING": _rotary,
    "LINEAR_ATTENTION": _linear_attention,
    "CAUSAL_CONV": _causal_conv,
    "RMS_NORMALIZATION": _rms,
    "LP_NORMALIZATION": _lp,
    "MEAN_VARIANCE_NORMALIZATION": _mean_variance,
    "NEGATIVE_LOG_LIKELIHOOD_LOSS": _likelihood,
    "SOFTMAX_CROSS_ENTROPY_LOSS": _cross_entropy,
    "DFT": _dft,
    "STFT": _stft,
}
"""By operation, called as the interpreter calls its own."""
