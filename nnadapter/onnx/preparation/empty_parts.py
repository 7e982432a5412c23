"""Parts of a Concat that have no elements at any sizes of inputs leave it, and what they are made of is read by nobody.

Rotary embeddings hand on the part of a head that they do not turn, `q[..., turned:]`; where they turn all of it (Phi-3)
there is none. Devices take no tensors without elements, and plans that leave sizes open have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from nnadapter.ir.operand import Array
from nnadapter.onnx.building import copied, with_nodes
from nnadapter.onnx.node import OnnxNode
from partition.graph import Value


def empty_parts(
    nodes: Sequence[OnnxNode], values: Mapping[str, Value], constants: Mapping[str, Array]
) -> Mapping[int, frozenset[int]]:
    """Return which inputs of which Concat have no elements whatever is fed, by position; one of its inputs stays.

    Args:
        nodes: of a model.
        values: what is known of them at all sizes of inputs.
        constants: what is known of their contents.
    """
    sizes = _Sizes(nodes, values, constants)
    empty_inputs = {
        position: frozenset(index for index, name in enumerate(node.inputs) if sizes.is_empty(name, node))
        for position, node in enumerate(nodes)
        if node.op_type == "Concat" and not node.domain and not node.contradiction and len(node.inputs) > 1
    }
    return {
        position: parts
        for position, parts in empty_inputs.items()
        if parts and len(parts) < len(nodes[position].inputs)
    }


def without_parts(model: onnx.ModelProto, parts: Mapping[int, frozenset[int]]) -> onnx.ModelProto:
    """Return a model some of whose nodes, by position, do not read some of their inputs."""
    nodes = [copied(node) if position in parts else node for position, node in enumerate(model.graph.node)]
    for position, left_out in parts.items():
        read = [name for index, name in enumerate(nodes[position].input) if index not in left_out]
        del nodes[position].input[:]
        nodes[position].input.extend(read)
    return with_nodes(model, nodes)


class _Sizes:
    """Sizes that are the same at all sizes of inputs."""

    def __init__(self, nodes: Sequence[OnnxNode], values: Mapping[str, Value], constants: Mapping[str, Array]) -> None:
        self._values, self._constants = values, constants
        self._makers = {name: node for node in nodes for name in node.outputs if name}

    def is_empty(self, name: str, concat: OnnxNode) -> bool:
        """Whether a part of a Concat has no elements along its axis."""
        axis, value = concat.integer("axis", 1), self._values.get(name)
        if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
            return False
        return value.shape[axis] == 0 or self._is_sliced_away(name, axis % len(value.shape), len(value.shape))

    def _is_sliced_away(self, name: str, axis: int, rank: int) -> bool:
        """Whether a Slice along this axis begins behind the end, and goes forward."""
        node = self._makers.get(name)
        if node is None or node.op_type != "Slice" or node.domain or len(node.inputs) < _AXES + 1:
            return False
        axes, has_steps = self._numbers(node.inputs[_AXES]), len(node.inputs) > _STEPS and node.inputs[_STEPS]
        steps = self._numbers(node.inputs[_STEPS]) if has_steps else (1,)
        if not steps or axes is None or len(axes) != 1 or axes[0] % rank != axis or steps[0] < 1:
            return False
        data, starts = self._values.get(node.inputs[0]), self._numbers(node.inputs[1])
        length = None if data is None or data.shape is None else data.shape[axis]
        return isinstance(length, int) and starts is not None and len(starts) == 1 and starts[0] >= length

    def _numbers(self, name: str) -> tuple[int, ...] | None:
        """The integers of a constant, if it is a small one: weights are not read."""
        array = self._constants.get(name)
        is_small = array is not None and array.dtype.kind == "i" and array.size <= _MOST_NUMBERS
        return tuple(map(int, array.reshape(-1))) if is_small and array is not None else None


_AXES, _STEPS = 3, 4
"""Inputs of Slice, from opset 10 on."""
_MOST_NUMBERS = 64
"""No array has more axes than this."""
