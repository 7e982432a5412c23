"""`If` nodes that inputs decide before a run, and the model that computes their conditions.

Deterministic nodes with small results compute the conditions from small inputs, shapes and constants. Only top-level
nodes are considered; inlining exposes nested ones. Equal or negated conditions are evaluated once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from math import prod

import numpy as np
import onnx
from onnx import helper

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import info_of, initializer_of, model_of, untyped
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.onnxruntime_limits import loadable
from nnadapter.onnx.preparation.branch_decisions import ELSE, MOST_DECIDING, THEN, BranchDecision, Choice, Conditions
from nnadapter.onnx.preparation.folding import may_fold
from nnadapter.onnx.preparation.prepare import Prepared, inline_constant_branches, inline_decided_branches
from nnadapter.process.resources import paused_collection
from nnadapter.records import dataclass, field, replace
from partition.graph import Value

_MOST_BYTES = 1 << 16
"""Largest value, in bytes, that may be computed for a condition."""
_MOST_NODES = 256
"""Maximum number of nodes that compute all conditions."""
_LONGEST_TEXT = 80
_INTEGER_DTYPES = frozenset(("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"))
_REAL = frozenset(("float16", "float32", "float64"))
"""Floating-point types. Such inputs decide only if they are single numbers; longer ones are data."""


@dataclass(frozen=True, eq=False)
class DecidingConditions:
    """Conditions of `If` nodes that a model's inputs decide before a run."""

    prepared: Prepared
    conditions: Conditions
    texts: tuple[str, ...]
    keys: tuple[bytes, ...]
    branches: Mapping[int, tuple[int, bool]]
    """`If` position -> condition number, and whether the then-branch is taken if it is true."""


def decision_of(prepared: Prepared) -> DecidingConditions | None:
    """Return the computable conditions of a model, or None if they are too costly."""
    value_facts, root_conditions = _decidable_ifs(prepared)
    if value_facts is None or not root_conditions:
        return None
    roots: dict[bytes, str] = {}
    for root, _ in root_conditions.values():
        roots.setdefault(value_facts.keys[root], root)
    numbers, names = {key: number for number, key in enumerate(roots)}, list(roots.values())
    branches = {index: (numbers[value_facts.keys[root]], is_same) for index, (root, is_same) in root_conditions.items()}
    conditions = value_facts.conditions(names)
    if conditions is None:
        return None
    return DecidingConditions(prepared, conditions, value_facts.texts(names), tuple(roots), branches)


@paused_collection
def decided(decision: DecidingConditions, truths: Sequence[bool]) -> Prepared:
    """Return the model with `If` branches inlined for these values of conditions. Raises InvalidModelError."""
    prepared = decision.prepared
    takes_then = {index: truths[number] == is_same for index, (number, is_same) in decision.branches.items()}
    names: list[list[str]] = [[] for _ in truths]
    for index, (number, _) in decision.branches.items():
        names[number].append(prepared.nodes[index].name)
    choice: Choice = tuple(
        BranchDecision(text, bool(holds), tuple(nodes), key)
        for text, holds, nodes, key in zip(decision.texts, truths, names, decision.keys, strict=True)
    )
    inlined_model = inline_decided_branches(prepared, takes_then)
    inlined_model = inline_constant_branches(
        replace(inlined_model, branch_decisions=(*prepared.branch_decisions, *choice))
    )
    while takes_then := _decided_before(inlined_model):
        inlined_model = inline_constant_branches(inline_decided_branches(inlined_model, takes_then))
    return inlined_model


def _decidable_ifs(prepared: Prepared) -> tuple[_PrecomputableValues | None, dict[int, tuple[str, bool]]]:
    """Return the computable values. Also return `If` position -> root condition, and False if it is negated."""
    condition_names = {
        index: node.inputs[0] for index, node in enumerate(prepared.nodes) if _is_undecided(node, prepared)
    }
    value_facts = _PrecomputableValues(prepared) if condition_names else None
    if value_facts is None:
        return None, {}
    return value_facts, {
        index: value_facts.plain(name)
        for index, name in condition_names.items()
        if name in value_facts.keys and value_facts.is_single(name)
    }


def _decided_before(prepared: Prepared) -> dict[int, bool]:
    value_facts, root_conditions = _decidable_ifs(prepared)
    if value_facts is None:
        return {}
    truths = {decision.key: decision.value for decision in prepared.branch_decisions}
    outcomes = {
        index: (truths.get(value_facts.keys[root]), is_same) for index, (root, is_same) in root_conditions.items()
    }
    return {index: holds == is_same for index, (holds, is_same) in outcomes.items() if holds is not None}


def _is_undecided(node: OnnxNode, prepared: Prepared) -> bool:
    return (
        node.op_type == "If"
        and node.is_standard
        and node.attributes.keys() >= {THEN, ELSE}
        and bool(node.input(0))
        and node.inputs[0] not in prepared.constants
    )


@dataclass(eq=False)
class _PrecomputableValues:
    prepared: Prepared
    keys: dict[str, bytes] = field(default_factory=dict)
    """Hashes of values, equal for equal computations on the same inputs."""
    _measured: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        prepared = self.prepared
        for name in prepared.graph.inputs:
            if _decides(prepared.graph.value(name)):
                self._note(name, ("input", name))
        for index, node in enumerate(prepared.nodes):
            measured = _measured_input(node, prepared)
            if measured:
                self._measured[index] = measured
            elif not all(self._is_there(name) for name in node.inputs if name) or not may_fold(prepared, index):
                continue
            if all(_is_small(prepared.values.get(name)) for name in node.outputs if name):
                self._note_outputs(index, node, measured)

    def is_single(self, name: str) -> bool:
        value = self._value(name)
        shape = None if value is None or value.dtype != "bool" else value.static_shape
        return shape is not None and prod(shape) == 1

    def plain(self, name: str) -> tuple[str, bool]:
        """Follow Not and Identity nodes from a condition to its root. Return the root, and False if it is negated."""
        graph, is_same = self.prepared.graph, True
        while (index := graph.producer.get(name)) is not None:
            node = self.prepared.nodes[index]
            if node.domain or node.op_type not in ("Not", "Identity") or not self.is_single(node.inputs[0]):
                break
            if node.inputs[0] not in self.keys:
                break
            is_same ^= node.op_type == "Not"
            name = node.inputs[0]
        return name, is_same

    def texts(self, names: Sequence[str]) -> tuple[str, ...]:
        text_by_name: dict[str, str] = {}
        for index in self._cone(names)[0]:  # in topological order, so that shared values are formatted once
            text = self._text_of(index, text_by_name)
            for name in self.prepared.nodes[index].outputs:
                text_by_name[name] = text if len(text) <= 2 * _LONGEST_TEXT else name
        texts = {name: self._text(name, text_by_name) for name in names}
        return tuple(text if len(text) <= _LONGEST_TEXT else repr(name) for name, text in texts.items())

    def conditions(self, roots: Sequence[str]) -> Conditions | None:
        prepared = self.prepared
        positions, inputs, shapes = self._cone(roots)
        if len(positions) > _MOST_NODES:
            return None
        computed = [name for name in dict.fromkeys(roots) if name not in inputs]
        contents = b""
        if computed:
            model = self._model(positions, inputs, shapes, computed)
            try:
                contents = loadable(model).SerializeToString(deterministic=True)
            except InvalidModelError:  # ONNX Runtime lacks the opset, so it cannot run the `If` either
                return None
        in_order = tuple(name for name in prepared.graph.inputs if name in inputs)
        return Conditions(in_order, tuple(shapes), tuple(roots), contents)

    def _cone(self, roots: Sequence[str]) -> tuple[list[int], set[str], list[str]]:
        """Return the nodes that compute `roots`, the inputs that they read, and the inputs whose shapes they read."""
        graph, constants = self.prepared.graph, self.prepared.constants
        positions, inputs, shapes, waiting = set[int](), set[str](), dict[str, None](), list(roots)
        while waiting:
            name = waiting.pop()
            index = graph.producer.get(name)
            if not name or name in constants or index in positions:
                continue
            if index is None:
                inputs.add(name)
                continue
            positions.add(index)
            if index in self._measured:
                shapes[self._measured[index]] = None
            else:
                waiting.extend(self.prepared.nodes[index].inputs)
        return sorted(positions), inputs, list(shapes)

    def _model(
        self, positions: Sequence[int], inputs: set[str], shapes: Sequence[str], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        prepared = self.prepared
        nodes = [node for index in positions for node in self._nodes(index)]
        produced_names = {name for node in nodes for name in node.output}
        read = dict.fromkeys(name for node in nodes for name in node.input if name and name not in produced_names)
        infos = [info_of(prepared.graph.value(name)) for name in prepared.graph.inputs if name in inputs]
        ranks = {name: len(prepared.graph.value(name).shape or ()) for name in shapes}
        infos.extend(
            helper.make_tensor_value_info(self._shape_of(name), onnx.TensorProto.INT64, [rank])
            for name, rank in ranks.items()
        )
        constants = [initializer_of(name, prepared.constants[name]) for name in read if name in prepared.constants]
        constants += [initializer_of(self._shape_of(size), np.array([size])) for size in self._sizes(positions)]
        return model_of(prepared.model, nodes, infos, untyped(outputs), constants)

    def _nodes(self, index: int) -> list[onnx.NodeProto]:
        node = self.prepared.nodes[index]
        if index not in self._measured:
            return [self.prepared.model.graph.node[index]]
        shape = self._shape_of(self._measured[index])
        if node.op_type == "Size":
            return [helper.make_node("ReduceProd", [shape], list(node.outputs), keepdims=0)]
        if node.attributes.keys() & {"start", "end"}:
            ends = list(map(self._shape_of, self._ends(index)))
            return [helper.make_node("Slice", [shape, *ends], list(node.outputs))]
        return [helper.make_node("Identity", [shape], list(node.outputs))]

    def _shape_of(self, source: object) -> str:
        return f"{source}{self._shape_name_suffix}"

    @cached_property
    def _shape_name_suffix(self) -> str:
        suffix, graph = "/shape", self.prepared.graph
        names = (*graph.inputs, *graph.producer, *self.prepared.constants)
        while any(name.endswith(suffix) for name in names):
            suffix += "_"
        return suffix

    def _sizes(self, positions: Sequence[int]) -> list[int]:
        return sorted({size for index in positions if index in self._measured for size in self._ends(index)})

    def _ends(self, index: int) -> tuple[int, ...]:
        node = self.prepared.nodes[index]
        if not node.attributes.keys() & {"start", "end"}:
            return ()
        rank = len(self.prepared.graph.value(self._measured[index]).shape or ())
        return node.integer("start", 0), node.integer("end", rank)

    def _note_outputs(self, index: int, node: OnnxNode, measured: str) -> None:
        proto = self.prepared.model.graph.node[index]
        stated = tuple(sorted(attribute.SerializeToString(deterministic=True) for attribute in proto.attribute))
        read = ("shape of", measured) if measured else tuple(map(self._key, node.inputs))
        for position, name in enumerate(node.outputs):
            if name:
                self._note(name, (node.op_type, stated, read, position))

    def _note(self, name: str, description: object) -> None:
        self.keys[name] = sha256(repr(description).encode()).digest()

    def _key(self, name: str) -> object:
        array = self.prepared.constants.get(name)
        if array is None:
            return self.keys.get(name, "")
        return array.dtype.str, array.shape, array.tolist() if array.dtype.hasobject else array.tobytes()

    def _is_there(self, name: str) -> bool:
        return name in self.keys or _is_small_array(self.prepared.constants.get(name))

    def _value(self, name: str) -> Value | None:
        graph = self.prepared.graph
        return graph.value(name) if name in graph.inputs else self.prepared.values.get(name)

    def _text(self, name: str, text_by_name: Mapping[str, str]) -> str:
        array = self.prepared.constants.get(name)
        if array is not None:
            return str(array.tolist()) if array.size <= MOST_DECIDING else name
        return text_by_name.get(name, name)

    def _text_of(self, index: int, text_by_name: Mapping[str, str]) -> str:
        node = self.prepared.nodes[index]
        measured = self._measured.get(index)
        read = [self._text(name, text_by_name) for name in node.inputs if name] if measured is None else [measured]
        return read[0] if node.op_type == "Cast" and len(read) == 1 else f"{node.op_type}({', '.join(read)})"


def _decides(value: Value) -> bool:
    most = MOST_DECIDING if value.dtype in _INTEGER_DTYPES else 1 if value.dtype in _REAL else 0
    return value.static_shape is not None and 0 < prod(value.static_shape) <= most


def _measured_input(node: OnnxNode, prepared: Prepared) -> str:
    if node.op_type not in ("Shape", "Size") or not node.is_standard:
        return ""
    name = node.input(0)
    is_input = name in prepared.graph.inputs
    return name if is_input and prepared.graph.value(name).shape is not None else ""


def _is_small(value: Value | None) -> bool:
    return value is not None and value.static_shape is not None and (value.nbytes or _MOST_BYTES + 1) <= _MOST_BYTES


def _is_small_array(array: Array | None) -> bool:
    return array is not None and array.nbytes <= _MOST_BYTES
