"""Which nodes make a loader refuse a model: found by giving it parts of the model.

Asked only after a refusal, so that models that load lose no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import checker, shape_inference

from nnadapter.drivers.validity import contradiction
from partition.onnx_io import value_of
from partition.onnx_nodes import captured_names
from partition.verdict import Unsupported

Attempt = Callable[[onnx.ModelProto], Unsupported | None]
"""Loads a model, and says why not if it cannot."""

_SMALL_BYTES = 1 << 12
"""Constants up to this size are given with their contents, larger ones as inputs."""


def find_culprits(model: onnx.ModelProto, attempt: Attempt) -> dict[int, Unsupported]:
    """Return the nodes (positions) that `attempt` refuses each by itself, and why.

    1. Nodes of one op with the same attributes and types are one case: one of them is tried for all.
    2. Cases are tried together, in halves where they fail, so that n of them with one culprit take about 2 log n tries.
    3. A node that is not valid ONNX is no culprit: the model is wrong then, and no other device would mend it.
    """
    parts = _Parts(model)
    cases: dict[object, list[int]] = {}
    for position, node in enumerate(model.graph.node):
        if parts.has_types(position):
            cases.setdefault(parts.case_of(node), []).append(position)
    first = {positions[0]: positions for positions in cases.values()}
    refused = _refused(list(first), parts, attempt)
    return {position: why for found, why in refused.items() for position in first[found] if parts.is_valid(found)}


def _refused(positions: Sequence[int], parts: _Parts, attempt: Attempt) -> dict[int, Unsupported]:
    why = attempt(parts.part(positions)) if positions else None
    if why is None:
        return {}
    if len(positions) == 1:
        return {positions[0]: why}
    middle = len(positions) // 2
    return {**_refused(positions[:middle], parts, attempt), **_refused(positions[middle:], parts, attempt)}


class _Parts:
    """Takes nodes out of a model, what they read becoming inputs of known types."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        graph = _inferred(model).graph
        self._types = {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}
        self._types.update((tensor.name, _typed(tensor)) for tensor in graph.initializer)
        self._small = {tensor.name: tensor for tensor in graph.initializer if tensor.ByteSize() <= _SMALL_BYTES}

    def has_types(self, position: int) -> bool:
        """Whether the types of everything that a node reads are known."""
        return all(name in self._types for name in _reads(self._model.graph.node[position]))

    def case_of(self, node: onnx.NodeProto) -> object:
        """What decides whether a node is refused: its op, attributes and types, not its names."""
        return (
            node.domain,
            node.op_type,
            tuple(sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)),
            tuple(self._dtype(name) for name in (*node.input, *captured_names(node))),
            tuple(self._dtype(name) for name in node.output),
        )

    def part(self, positions: Sequence[int]) -> onnx.ModelProto:
        """The nodes at `positions`, ascending, as a model."""
        whole = self._model
        part = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import, functions=whole.functions)
        part.graph.name = "part"
        part.graph.node.extend(whole.graph.node[position] for position in positions)
        made = {name for node in part.graph.node for name in node.output}
        read = dict.fromkeys(name for node in part.graph.node for name in _reads(node) if name not in made)
        part.graph.initializer.extend(self._small[name] for name in read if name in self._small)
        part.graph.input.extend(self._types[name] for name in read if name not in self._small)
        part.graph.output.extend(self._types.get(name) or onnx.ValueInfoProto(name=name) for name in made if name)
        return part

    def is_valid(self, position: int) -> bool:
        """Whether a node is what its schema and its converter say."""
        alone = self.part([position])
        del alone.graph.output[:]
        try:
            checker.check_model(alone, full_check=True)
        except (checker.ValidationError, shape_inference.InferenceError, RuntimeError, ValueError):
            return False
        return contradiction(alone) is None

    def _dtype(self, name: str) -> str | None:
        return value_of(self._types[name]).dtype if name in self._types else None


def _reads(node: onnx.NodeProto) -> tuple[str, ...]:
    return tuple(name for name in (*node.input, *captured_names(node)) if name)


def _typed(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    made: onnx.ValueInfoProto = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    return made


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        inferred: onnx.ModelProto = shape_inference.infer_shapes(model, data_prop=True)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError):
        return model
    return inferred
