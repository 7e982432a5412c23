"""Scratch memory: what kernels and activations need beside their tensors, added once all sizes are known."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph, NpuTensor, Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels import KERNELS
from nnadapter.drivers.fake_npu.kernels.elementwise import activation_scratch
from nnadapter.drivers.fake_npu.kernels.kernel import Outline, no_scratch


def with_scratch(graph: NpuGraph) -> NpuGraph:
    """The graph with the scratch memory of every instruction."""
    tensors = list(graph.tensors)
    instructions = []
    for instruction in graph.instructions:
        if may_want_scratch(instruction):
            inputs = [graph.tensors[tensor].type for tensor in instruction.inputs]
            outputs = [graph.tensors[tensor].type for tensor in instruction.outputs]
            wanted = wanted_scratch(instruction, inputs, outputs, instruction.parameters)
            if wanted:
                instruction = instruction.with_scratch(tuple(range(len(tensors), len(tensors) + len(wanted))))
                tensors.extend(map(NpuTensor, wanted))
        instructions.append(instruction)
    return NpuGraph(tuple(tensors), tuple(instructions), graph.inputs, graph.outputs)


def may_want_scratch(instruction: Instruction) -> bool:
    """Whether an instruction wants scratch memory at some sizes."""
    return instruction.activation is not None or KERNELS[instruction.kernel].scratch is not no_scratch


def wanted_scratch(
    instruction: Instruction, inputs: Sequence[TensorType], outputs: Sequence[TensorType], parameters: Parameters
) -> tuple[TensorType, ...]:
    """The types of the scratch memory of an instruction on tensors of these types, with these parameters."""
    scratch = KERNELS[instruction.kernel].scratch(Outline(inputs, outputs, parameters))
    if instruction.activation is None:
        return scratch
    return (*scratch, *activation_scratch(instruction.activation.function, outputs[0]))
