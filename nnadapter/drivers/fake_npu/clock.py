"""The simulated clock: how long a lowered segment would take on the hardware that this device stands for.

One instruction after the other, each a roofline: the longer of its arithmetic and its traffic with the device's memory.
A segment is launched, and every input and output is transferred. Nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.drivers.capability import Profile
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph, TensorType
from nnadapter.drivers.fake_npu.limits import HELD
from nnadapter.drivers.fake_npu.products import REPEATED, instruction_flops

Types = Sequence[TensorType]
_TRANSFER_SECONDS = 10e-6
_OPERATION_SECONDS = 1e-6
_HALF_PRECISION_GAIN = 2.0


def simulated_profile(
    *, peak_gflops: float, bandwidth_gbs: float, launch_us: float, transfer_gbs: float, half_precision: bool
) -> Profile:
    """Return the limits of the simulated hardware: what an accelerator behind a slow bus is like.

    Args:
        peak_gflops: 1e9 floating-point operations per second, in float32; float16 is twice as fast.
        bandwidth_gbs: 1e9 bytes per second of its own memory.
        launch_us: microseconds per segment.
        transfer_gbs: 1e9 bytes per second between host and device.
        half_precision: the device computes in float16.
    """
    return Profile(
        peak_flops=peak_gflops * 1e9 * (_HALF_PRECISION_GAIN if half_precision else 1.0),
        bandwidth=bandwidth_gbs * 1e9,
        launch_seconds=launch_us * 1e-6,
        transfer_seconds=_TRANSFER_SECONDS,
        transfer_bandwidth=transfer_gbs * 1e9,
        operation_seconds=_OPERATION_SECONDS,
        boundary_dtypes=frozenset(dtype.value for dtype in HELD),
        channels_last=True,
        simulated=True,
    )


def simulated_seconds(graph: NpuGraph, profile: Profile) -> float:
    """Return the seconds of one run of a lowered segment, launch and transfers included."""
    border = [graph.tensors[tensor].type.nbytes for tensor in (*graph.inputs, *graph.outputs)]
    transfers = len(border) * profile.transfer_seconds + sum(border) / profile.transfer_bandwidth
    return (
        profile.launch_seconds
        + transfers
        + sum(_seconds(graph, instruction, profile) for instruction in graph.instructions)
    )


def _seconds(graph: NpuGraph, instruction: Instruction, profile: Profile) -> float:
    inputs, outputs = (
        [graph.tensors[tensor].type for tensor in group] for group in (instruction.inputs, instruction.outputs)
    )
    arithmetic = instruction_flops(instruction, inputs, outputs) / profile.peak_flops
    return profile.operation_seconds + max(arithmetic, _traffic(instruction, inputs, outputs) / profile.bandwidth)


def _traffic(instruction: Instruction, inputs: Types, outputs: Types) -> int:
    """Bytes read and written. What only picks from its first input reads no more than it writes."""
    written = sum(type_.nbytes for type_ in outputs)
    first = inputs[0].nbytes if inputs else 0
    read = min(first, written) if instruction.kernel in _PICKS else first
    others = inputs[1:]
    if instruction.kernel == REPEATED:
        taps = TensorType(others[0].dtype, (others[0].dimensions[0], outputs[0].dimensions[-1]))
        others = (taps, *others[1:])
    return written + read + sum(type_.nbytes for type_ in others)


_PICKS = frozenset({"gather", "gather_elements", "gather_nd", "slice", "reverse_sequence"})
