"""Simulated clock: predicted seconds of a lowered segment on the simulated hardware.

Each instruction takes the longer of arithmetic and memory traffic (roofline). Launch and transfers are added; nothing
overlaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from nnadapter.drivers.capability import Profile
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph, TensorType
from nnadapter.drivers.fake_npu.limits import HELD

Types = Sequence[TensorType]
_TRANSFER_SECONDS = 10e-6
_OPERATION_SECONDS = 1e-6
_HALF_PRECISION_GAIN = 2.0
_CENTER = "center"
_INTEGER_GAINS = {"int8": 4.0, "uint8": 4.0, "int16": 2.0, "uint16": 2.0}
"""Data type of the first operand -> speed over float32."""


def simulated_profile(
    *, peak_gflops: float, bandwidth_gbs: float, launch_us: float, transfer_gbs: float, half_precision: bool
) -> Profile:
    """Return the profile of the simulated hardware."""
    return Profile(
        peak_flops=peak_gflops * 1e9 * (_HALF_PRECISION_GAIN if half_precision else 1.0),
        bandwidth=bandwidth_gbs * 1e9,
        launch_seconds=launch_us * 1e-6,
        transfer_seconds=_TRANSFER_SECONDS,
        transfer_bandwidth=transfer_gbs * 1e9,
        operation_seconds=_OPERATION_SECONDS,
        peak_of_dtype={dtype: peak_gflops * 1e9 * gain for dtype, gain in _INTEGER_GAINS.items()},
        boundary_dtypes=frozenset(dtype.value for dtype in HELD),
        channels_last=True,
        simulated=True,
    )


def simulated_seconds(graph: NpuGraph, profile: Profile) -> float:
    """Return the seconds of one run of a graph."""
    boundary = [graph.tensors[tensor].type.nbytes for tensor in (*graph.inputs, *graph.outputs)]
    transfers = len(boundary) * profile.transfer_seconds + sum(boundary) / profile.transfer_bandwidth
    # products of integers are computed on their differences from the zero point, as floats
    integers = {
        instruction.outputs[0]: graph.tensors[instruction.inputs[0]].type.dtype
        for instruction in graph.instructions
        if instruction.kernel == _CENTER
    }
    steps = sum(_seconds(graph, instruction, profile, integers) for instruction in graph.instructions)
    return profile.launch_seconds + transfers + steps


def _seconds(graph: NpuGraph, instruction: Instruction, profile: Profile, integers: Mapping[int, str]) -> float:
    inputs, outputs = (
        [graph.tensors[tensor].type for tensor in group] for group in (instruction.inputs, instruction.outputs)
    )
    dtype = integers.get(instruction.inputs[0], inputs[0].dtype) if inputs else ""
    peak = profile.peak_of_dtype.get(dtype, profile.peak_flops)
    arithmetic = instruction_flops(instruction, inputs, outputs) / peak
    return profile.operation_seconds + max(arithmetic, _traffic(instruction, inputs, outputs) / profile.bandwidth)


def _traffic(instruction: Instruction, inputs: Types, outputs: Types) -> int:
    written = sum(type_.nbytes for type_ in outputs)
    first = inputs[0].nbytes if inputs else 0
    read = min(first, written) if instruction.kernel in _PICKS else first
    return written + read + sum(type_.nbytes for type_ in inputs[1:])


_PICKS = frozenset({"gather", "gather_elements", "gather_nd", "slice", "reverse_sequence"})


def instruction_flops(instruction: Instruction, inputs: Types, outputs: Types) -> float:
    """Return the FLOPs of one instruction: two per multiply-add.

    A kernel without multiply-adds has one FLOP per element of its largest tensor.
    """
    if instruction.kernel == "einsum":
        return 2.0 * _by_labels(instruction.parameters["equation"], inputs)
    formula = _PRODUCTS.get(instruction.kernel)
    if formula is not None:
        return 2.0 * formula(inputs, outputs)
    return float(max((type_.size for type_ in (*inputs, *outputs)), default=0))


def _by_filter(inputs: Types, outputs: Types) -> float:
    """Return the multiply-adds of a convolution or matrix product; channels are last."""
    return outputs[0].size * inputs[1].size / outputs[0].dimensions[-1]


def _by_labels(equation: str, inputs: Types) -> int:
    """Return the multiply-adds of an einsum. The number is exact for two factors."""
    sizes: dict[str, int] = {}
    for term, type_ in zip(equation.partition("->")[0].split(","), inputs, strict=True):
        for label, size in zip(term, type_.dimensions, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return prod(sizes.values())


def _by_steps(inputs: Types, outputs: Types) -> float:
    """Return a recurrent layer's multiply-adds over all steps; its input is [T, B, I]."""
    return inputs[0].size / inputs[0].dimensions[-1] * (inputs[1].size + inputs[2].size)


_PRODUCTS: Mapping[str, Callable[[Types, Types], float]] = {
    **dict.fromkeys(("convolution", "pointwise_convolution", "fully_connected"), _by_filter),
    "depthwise_convolution": lambda inputs, outputs: float(outputs[0].size * inputs[1].dimensions[0]),
    "transposed_convolution": lambda inputs, outputs: inputs[0].size * inputs[1].size / inputs[0].dimensions[-1],
    "volume_convolution": lambda inputs, outputs: outputs[0].size * inputs[1].size / outputs[0].dimensions[1],
    "transposed_volume_convolution": lambda inputs, outputs: inputs[0].size * inputs[1].size / inputs[0].dimensions[1],
    "matmul": lambda inputs, outputs: float(outputs[0].size * inputs[0].dimensions[-1]),
    # queries by keys, then scores by values: [.., L, D] by [.., S, D] twice
    "attention": lambda inputs, outputs: 2.0 * inputs[0].size * inputs[1].dimensions[-2],
    **dict.fromkeys(("lstm", "gru", "rnn"), _by_steps),
}
