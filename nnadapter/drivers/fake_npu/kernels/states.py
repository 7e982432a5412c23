"""Layers that carry a state along a sequence without gates of their own: linear attention, causal convolution."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run
from nnadapter.ir.operand import Array


def _by_head(packed: Array, heads: int) -> Array:
    """[B, T, heads * depth] seen as [T, B, heads, depth]."""
    return packed.reshape(*packed.shape[:2], heads, -1).swapaxes(0, 1)


def _bind_linear_attention(call: KernelArguments) -> Run:
    """One matrix [depth, depth of values] per head is faded, corrected and added to at every step, then read."""
    inputs, (out, state), (update, change) = _named(call), call.outputs, call.scratch
    heads, groups = call.parameters["query_heads"], call.parameters["key_value_heads"]
    queries, outputs = (_by_head(array, heads) for array in (inputs["query"], out))
    keys, values = (_by_head(inputs[name], groups) for name in ("key", "value"))
    decay = _by_head(inputs["decay"], groups)[..., None] if "decay" in inputs else None
    rates = inputs["rate"].swapaxes(0, 1)[..., None] if "rate" in inputs else None
    past, scale = inputs.get("past_state"), call.parameters["scale"]
    batch = len(out)

    def step(position: int) -> None:
        key, value = keys[position], values[position]
        if decay is not None:
            np.multiply(state, np.exp(decay[position]), state)
        if rates is not None:
            np.matmul(key[:, :, None], state, change)
            np.subtract(value, change[:, :, 0], change[:, :, 0])
            np.multiply(change[:, :, 0], rates[position], change[:, :, 0])
            value = change[:, :, 0]
        np.multiply(key[..., None], value[:, :, None], update)
        np.add(state, update, state)
        read = np.matmul(queries[position].reshape(batch, groups, heads // groups, -1), state)
        np.multiply(read.reshape(outputs[position].shape), scale, outputs[position])

    def run() -> None:
        np.copyto(state, 0 if past is None else past)
        for position in range(len(queries)):
            step(position)

    return run


def _linear_attention_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """What is added to the states at one step, and what they say of its keys."""
    batch, groups, _, depth = outline.outputs[1].dimensions
    return outline.outputs[1], TensorType(outline.outputs[1].dtype, (batch, groups, 1, depth))


def _bind_causal_convolution(call: KernelArguments) -> Run:
    """Each channel by itself, over the elements up to now; the state is the elements that the next call needs."""
    inputs, (out, state), (padded, part) = _named(call), call.outputs, call.scratch
    x, weight, bias, past = (inputs.get(name) for name in ("input", "weight", "bias", "past_state"))
    assert x is not None, "the roles hold every required input"
    assert weight is not None, "the roles hold every required input"
    length, kept = x.shape[2], state.shape[2]
    taps = [(weight[:, :, tap], padded[:, :, tap : tap + length]) for tap in range(weight.shape[2])]
    gated = call.parameters["activation"] == "swish"

    def run() -> None:
        np.copyto(padded[:, :, :kept], 0 if past is None else past)
        np.copyto(padded[:, :, kept:], x)
        np.copyto(out, 0 if bias is None else bias[:, None])
        for factor, source in taps:
            np.multiply(source, factor, part)
            np.add(out, part, out)
        if gated:
            _swish(out, part)
        np.copyto(state, padded[:, :, length:])

    return run


def _swish(x: Array, gate: Array) -> None:
    """The quotient x / (1 + exp(-x)), in place."""
    np.negative(x, gate)
    np.exp(gate, gate)
    np.add(gate, 1, gate)
    np.divide(x, gate, x)


def _causal_convolution_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """State and input side by side, and one tap's share of the result."""
    batch, channels, length = outline.inputs[0].dimensions
    return TensorType(
        outline.inputs[0].dtype, (batch, channels, length + outline.outputs[1].dimensions[2])
    ), outline.outputs[0]


def _named(call: KernelArguments) -> Mapping[str, Array]:
    return dict(zip(call.parameters["roles"], call.inputs, strict=True))


KERNELS: Mapping[str, NumpyKernel] = {
    "causal_convolution": NumpyKernel(bind=_bind_causal_convolution, scratch=_causal_convolution_scratch),
    "linear_attention": NumpyKernel(bind=_bind_linear_attention, scratch=_linear_attention_scratch),
}
"""Rows of the kernel table."""
