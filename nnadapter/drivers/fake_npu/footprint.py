"""What programs hold: what is bound for each of them, and what they share with all programs of their context."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.fake_npu.graph import NpuGraph
from nnadapter.ir.operand import Array

if TYPE_CHECKING:
    from nnadapter.ir.model import Model

_BYTES_PER_INSTRUCTION = 4 << 10
_ARENA_PER_BOUND_BYTE = 11
"""Both measured on networks of 20 to 150 instructions, by the growth of the process from plan to plan."""


def bound_bytes(graph: NpuGraph, arena_bytes: int) -> int:
    """What bound instructions hold: Python objects, some per instruction, more where there are more blocks."""
    return _BYTES_PER_INSTRUCTION * len(graph.instructions) + arena_bytes // _ARENA_PER_BOUND_BYTE


def packed_bytes(graph: NpuGraph, model: Model) -> Mapping[Hashable, int]:
    """What was made of weights, by array; weights as the model has them are the model's."""
    held = {id(_owner(operand.value)) for operand in model.operands if operand.value is not None}
    owners = [_owner(tensor.value) for tensor in graph.tensors if tensor.value is not None]
    return {id(owner): owner.nbytes for owner in owners if id(owner) not in held}


def arena_bytes(arenas: Arenas) -> Mapping[Hashable, int]:
    """The arenas of a context, in which its programs take turns."""
    return {("arenas", id(arenas)): arenas.used_bytes}


def _owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
