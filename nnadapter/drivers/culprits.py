"""Which nodes make a loader refuse a model: found by giving it parts of the model.

Asked only after a refusal, so that models that load lose no time; or beforehand, by drivers whose engine only answers
for models as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from hashlib import sha256

import onnx
from onnx import checker, shape_inference

from nnadapter.onnx.nodes import captured_names, plain_domain
from nnadapter.onnx.values import value_of
from partition.graph import Value
from partition.verdict import Unsupported

Attempt = Callable[[onnx.ModelProto], Unsupported | None]
"""Loads a model, and says why not if it cannot."""

_SMALL_BYTES = 1 << 12
"""Constants up to this size are given with their contents, larger ones as inputs."""


def find_culprits(model: onnx.ModelProto, attempt: Attempt) -> dict[int, Unsupported]:
    """Return the nodes (positions) that `attempt` refuses each by itself, and why.

    1. Nodes of one op with the same attributes and types are one case: one of them is tried for all.
    2. Cases are tried together, in halves where they fail, so that n of them with one culprit take about 2 log n tries.
    3. A node that contradicts its schema is no culprit: the model is wrong then, and no other device would mend it.
    """
    parts = Parts(model)
    cases: dict[object, list[int]] = {}
    for position, node in enumerate(model.graph.node):
        if parts.has_types(position):
            cases.setdefault(parts.case_of(node), []).append(position)
    first = {positions[0]: positions for positions in cases.values()}
    refused = find_refused(list(first), parts, attempt)
    return {position: why for found, why in refused.items() for position in first[found] if parts.is_valid(found)}


def find_refused(positions: Sequence[int], parts: Parts, attempt: Attempt) -> dict[int, Unsupported]:
    """Return which of the nodes at `positions` (ascending) `attempt` refuses each by itself, and why.

    All are tried together, in halves where they fail.
    """
    why = attempt(parts.part(positions)) if positions else None
    if why is None:
        return {}
    if len(positions) == 1:
        return {positions[0]: why}
    middle = len(positions) // 2
    return {**find_refused(positions[:middle], parts, attempt), **find_refused(positions[middle:], parts, attempt)}


class Parts:
    """Takes nodes out of a model, what they read becoming inputs of known types."""

    def __init__(self, model: onnx.ModelProto, constant_bytes: int = _SMALL_BYTES) -> None:
        """Infer the types of the model's values.

        Args:
            model: the model.
            constant_bytes: constants up to this size are given with their contents, larger ones as inputs.
        """
        self._model = model
        graph = _inferred(model).graph
        self._types = {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}
        self._types.update((tensor.name, _typed(tensor)) for tensor in model.graph.initializer)
        self._constant_bytes = constant_bytes

    @cached_property
    def constants(self) -> dict[str, onnx.TensorProto]:
        """The initializers that are given with their contents."""
        tensors = self._model.graph.initializer
        return {tensor.name: tensor for tensor in tensors if tensor.ByteSize() <= self._constant_bytes}

    @property
    def opset(self) -> int:
        """The version of ONNX's own domain."""
        return int(next((entry.version for entry in self._model.opset_import if not plain_domain(entry.domain)), 1))

    def value(self, name: str) -> Value | None:
        """The type of a value, if it is known."""
        return value_of(self._types[name]) if name in self._types else None

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

    def sized_case_of(self, node: onnx.NodeProto) -> object:
        """The same with dimensions, and with the contents of constants, by their digest."""
        reads = (*node.input, *captured_names(node))
        contents = (self.constants.get(name) for name in reads)
        digests = tuple(None if each is None else sha256(_contents(each)).digest() for each in contents)
        return self.case_of(node), tuple(map(self._shape, (*reads, *node.output))), digests

    def part(self, positions: Sequence[int]) -> onnx.ModelProto:
        """The nodes at `positions`, ascending, as a model."""
        whole = self._model
        part = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import, functions=whole.functions)
        part.graph.name = "part"
        part.graph.node.extend(whole.graph.node[position] for position in positions)
        made = dict.fromkeys(name for node in part.graph.node for name in node.output)
        read = dict.fromkeys(name for node in part.graph.node for name in _reads(node) if name not in made)
        part.graph.initializer.extend(self.constants[name] for name in read if name in self.constants)
        part.graph.input.extend(self._types[name] for name in read if name not in self.constants)
        part.graph.output.extend(self._types.get(name) or onnx.ValueInfoProto(name=name) for name in made if name)
        return part

    def is_valid(self, position: int) -> bool:
        """Whether a node is what its schema says."""
        alone = self.part([position])
        del alone.graph.output[:]
        try:
            checker.check_model(alone, full_check=True)
        except (checker.ValidationError, shape_inference.InferenceError, RuntimeError, ValueError):
            return False
        return True

    def _dtype(self, name: str) -> str | None:
        return value_of(self._types[name]).dtype if name in self._types else None

    def _shape(self, name: str) -> object:
        return value_of(self._types[name]).shape if name in self._types else None


def _reads(node: onnx.NodeProto) -> tuple[str, ...]:
    return tuple(name for name in (*node.input, *captured_names(node)) if name)


def _typed(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    made: onnx.ValueInfoProto = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    return made


def _contents(tensor: onnx.TensorProto) -> bytes:
    nameless = onnx.TensorProto()
    nameless.CopyFrom(tensor)
    nameless.name = ""
    return bytes(nameless.SerializeToString(deterministic=True))


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        inferred: onnx.ModelProto = shape_inference.infer_shapes(_light(model), data_prop=True)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError):
        return model
    return inferred


def _light(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with large constants as inputs: inference needs no weights, and takes no models beyond 2 GiB."""
    large = [tensor for tensor in model.graph.initializer if tensor.ByteSize() > _SMALL_BYTES]
    if not large:
        return model
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = light.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.value_info.extend(model.graph.value_info)
    graph.output.extend(model.graph.output)
    given = {value.name for value in model.graph.input}
    graph.input.extend([*model.graph.input, *_unless(map(_typed, large), given)])
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.ByteSize() <= _SMALL_BYTES)
    return light


def _unless(values: Iterable[onnx.ValueInfoProto], given: set[str]) -> Iterable[onnx.ValueInfoProto]:
    return (value for value in values if value.name not in given)
