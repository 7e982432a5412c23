"""Floating-point operations of instructions, by kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnadapter.drivers.fake_npu.graph import Instruction, TensorType

Types = Sequence[TensorType]
Formula = Callable[[Types, Types], float]
"""Types of inputs and outputs -> multiply-adds."""
REPEATED = "depthwise_convolution"
"""Its filter is packed as [kH * kW, repeat * C], for the host's caches; it is no product of BLAS."""


def instruction_flops(instruction: Instruction, inputs: Types, outputs: Types) -> float:
    """Floating-point operations of one instruction, a multiply-add being two, as its kernel computes.

    What is no product counts one for each element of the largest tensor: its traffic takes longer than that.
    """
    formula = _PRODUCTS.get(instruction.kernel)
    if formula is not None:
        return 2.0 * formula(inputs, outputs)
    return float(max((type_.size for type_ in (*inputs, *outputs)), default=0))


def _by_taps(inputs: Types, outputs: Types) -> float:
    return float(outputs[0].size * inputs[1].dimensions[0])


def _by_filter(inputs: Types, outputs: Types) -> float:
    """Every element of the output meets the part of the filter that makes its channel; channels are the last axis."""
    return outputs[0].size * inputs[1].size / outputs[0].dimensions[-1]


def _spread_by_filter(inputs: Types, outputs: Types) -> float:
    return inputs[0].size * inputs[1].size / inputs[0].dimensions[-1]


def _by_volume_filter(inputs: Types, outputs: Types) -> float:
    """As `_by_filter`; channels are the second axis."""
    return outputs[0].size * inputs[1].size / outputs[0].dimensions[1]


def _spread_by_volume_filter(inputs: Types, outputs: Types) -> float:
    return inputs[0].size * inputs[1].size / inputs[0].dimensions[1]


def _by_inner_axis(inputs: Types, outputs: Types) -> float:
    return float(outputs[0].size * inputs[0].dimensions[-1])


def _by_einsum(inputs: Types, outputs: Types) -> float:
    """Exact for [M, K] by [K, N]: the root of (M K) (K N) (M N)."""
    largest = max(type_.size for type_ in inputs)
    return float(max(largest, (outputs[0].size * inputs[0].size * inputs[-1].size) ** 0.5))


def _by_keys(inputs: Types, outputs: Types) -> float:
    """Queries by keys, and what comes out by values: [.., L, D] by [.., S, D] twice."""
    return 2.0 * inputs[0].size * inputs[1].dimensions[-2]


def _by_steps(inputs: Types, outputs: Types) -> float:
    """The weights of gates and of the state, for each step of each sequence: x is [T, B, I]."""
    steps = inputs[0].size / inputs[0].dimensions[-1]
    return steps * (inputs[1].size + inputs[2].size)


_PRODUCTS: Mapping[str, Formula] = {
    **dict.fromkeys(("convolution", "pointwise_convolution", "fully_connected"), _by_filter),
    REPEATED: _by_taps,
    "transposed_convolution": _spread_by_filter,
    "volume_convolution": _by_volume_filter,
    "transposed_volume_convolution": _spread_by_volume_filter,
    "matmul": _by_inner_axis,
    "einsum": _by_einsum,
    "attention": _by_keys,
    **dict.fromkeys(("lstm", "gru", "rnn"), _by_steps),
}
"""Kernel -> multiply-adds, from the types of its inputs and outputs."""
