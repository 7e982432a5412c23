"""onnx's inference, guarded against memory blow-up and crashes.

With data propagation, onnx builds a message per element of every propagated vector. It is enabled only if shapes are
computed, and after removing long vectors from the model: Add, Sub and Mul on long vectors become Max, which has the
same type. Results of other nodes become inputs, with types that were inferred without propagation.

Some ops crash the process if their first input has no type; they are hidden until this type is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from math import inf
from types import MappingProxyType

import onnx
from onnx import checker, helper, shape_inference

from nnadapter.onnx.construction import copied, tensor_info, with_nodes
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.graphs import RUNNING_GRAPHS, FunctionKey, captured_names, key_of, opsets_of, value_of, with_nested
from nnadapter.onnx.schemas import MICROSOFT
from nnadapter.records import dataclass, field

_LIKE_FIRST_INPUT = frozenset(
    [
        "Affine",
        "GroupNormalization",
        "ImageScaler",
        "LayerNormalization",
        "MeanVarianceNormalization",
        "ParametricSoftplus",
        "Scale",
        "ScaledTanh",
        "SimplifiedLayerNormalization",
        "ThresholdedRelu",
    ]
)
"""ONNX ops that onnx does not infer in some versions; the output has the type of the first input."""
_OF_MICROSOFT = frozenset(("MoE", "QMoE"))
"""Ops of com.microsoft without a schema; the output has the type of the first input."""
LIKE_INPUT = _LIKE_FIRST_INPUT | _OF_MICROSOFT
_HAS_INFERENCE: Mapping[str, float] = {"LayerNormalization": 17, "ThresholdedRelu": 10}
"""First version of the op that onnx infers."""


def is_like_input(domain: str, op_type: str, version: int) -> bool:
    """Return whether an op keeps its input's type, but onnx does not infer this."""
    if plain_domain(domain):
        return domain == MICROSOFT and op_type in _OF_MICROSOFT
    return op_type in _LIKE_FIRST_INPUT and version < _HAS_INFERENCE.get(op_type, inf)


def stand_in(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return an Identity for an op that keeps its input's type."""
    return onnx.NodeProto(op_type="Identity", input=node.input[:1], output=node.output[:1])


def with_stand_ins(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace nodes by `stand_in` if `is_like_input`; returns the same object if there are none."""
    nodes = model.graph.node
    if all(node.op_type not in LIKE_INPUT for node in nodes):
        return model
    opset = opsets_of(model.opset_import).get("", 0)
    model_copy = copied(model)
    for node in model_copy.graph.node:
        if is_like_input(node.domain, node.op_type, opset):
            node.CopyFrom(stand_in(node))
    return model_copy


FAILURES = (shape_inference.InferenceError, checker.ValidationError, ValueError, RuntimeError)
"""Errors for conflicting types."""
_LONGEST_SHAPE = 64
_MEASURING = frozenset(("Shape", "Size", "Constant"))
_ALIKE = frozenset(("Add", "Sub", "Mul"))
"""Ops that propagate contents and have results of the type of `Max`."""
_ALIKE_SINCE = 13
"""First opset in which onnx propagates contents through these ops."""
_OF_FIRST = frozenset(("Cast", "Gather", "Slice", "Squeeze", "Unsqueeze"))
"""Ops that propagate the contents of their first input."""
_HANDING_ON = _ALIKE | _OF_FIRST | {"Concat", "Size"}
_FOLLOWED = _HANDING_ON | _MEASURING

_NEEDING_TYPES = MappingProxyType(
    {
        "DictVectorizer": "ai.onnx.ml",
        "EyeLike": "",
        "LabelEncoder": "ai.onnx.ml",
        "RegexFullMatch": "",
        "TreeEnsemble": "ai.onnx.ml",
    }
)
"""Op type -> domain of ops whose inference reads the first input's type without a check.

Source: onnx 1.23.2, by inference over every schema in a child process; tests/onnx/test_propagation.py repeats it.
"""
_ELEMENT_TYPES = {f"tensor({name.lower()})": number for name, number in onnx.TensorProto.DataType.items()}
_WITHHELD = "nnadapter.withheld"
"""Domain without schemas, which hides nodes from inference."""
Types = dict[str, onnx.ValueInfoProto]


def infer(model: onnx.ModelProto, *, strict: bool = False) -> Types:
    """Return inferred types by name, without initializers. `strict` also fails for unknown ops.

    Raises:
        FAILURES: types conflict.
    """
    model = without_crashes(model)
    types = _types(shape_inference.infer_shapes(model, strict_mode=strict).graph)
    infos = _of_one_type(model, types)
    if infos:
        model = copied(model)
        model.graph.value_info.extend(infos)
        types = _types(shape_inference.infer_shapes(model, strict_mode=strict).graph)
    followed = _Followed.of(model)
    if followed.matters:
        guarded = followed.guarded(model, types)
        types = _types(shape_inference.infer_shapes(guarded, strict_mode=strict, data_prop=True).graph)
    return types


def _of_one_type(model: onnx.ModelProto, types: Types) -> list[onnx.ValueInfoProto]:
    infos, opsets = list[onnx.ValueInfoProto](), opsets_of(model.opset_import)
    for node in model.graph.node:
        names = [(position, name) for position, name in enumerate(node.output) if name and name not in types]
        domain = plain_domain(node.domain)
        if not names or not onnx.defs.has(node.op_type, domain=domain, max_inclusive_version=opsets.get(domain, 1)):
            continue
        formal = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain).outputs
        for position, name in names:
            kinds = formal[min(position, len(formal) - 1)].types
            element = _ELEMENT_TYPES.get(next(iter(kinds))) if len(kinds) == 1 else None
            if element is not None:
                infos.append(helper.make_tensor_value_info(name, element, None))
    return infos


def without_crashes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model on which inference does not crash; the same object if safe.

    Nodes that need the type of their first input move to an unknown domain, unless inference finds this type. In
    functions and subgraphs, they always move.
    """
    if not any(map(_needs_type, _visited(model))):
        return model
    withheld = copied(model)
    for node in _visited(withheld):
        node.domain = _WITHHELD if _needs_type(node) else node.domain
    for imports in (withheld.opset_import, *(function.opset_import for function in withheld.functions)):
        imports.add(domain=_WITHHELD, version=1)
    original_nodes = model.graph.node
    waiting = [position for position, node in enumerate(original_nodes) if _needs_type(node) and any(node.input[:1])]
    while waiting:
        types = _types(shape_inference.infer_shapes(withheld).graph)
        typed = {name for name, info in types.items() if info.type.WhichOneof("value")}
        typed.update(tensor.name for tensor in model.graph.initializer)
        ready = [position for position in waiting if original_nodes[position].input[0] in typed]
        if not ready:
            break
        for position in ready:
            withheld.graph.node[position].domain = original_nodes[position].domain
        waiting = [position for position in waiting if position not in ready]
    return withheld if any(node.domain == _WITHHELD for node in _visited(withheld)) else model


def _visited(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for node in chain(model.graph.node, *(function.node for function in model.functions)):
        if node.op_type in RUNNING_GRAPHS:
            yield from with_nested([node])
        else:
            yield node


def _needs_type(node: onnx.NodeProto) -> bool:
    return _NEEDING_TYPES.get(node.op_type) == plain_domain(node.domain)


def _types(graph: onnx.GraphProto) -> Types:
    return {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}


@dataclass(slots=True)
class _Followed:
    """Values whose contents onnx's data propagation computes."""

    names: set[str]
    functions: frozenset[FunctionKey]
    opset: int
    matters: bool = False
    """True if a node may read a propagated result."""
    handing_on: list[int] = field(default_factory=list)
    """Positions of nodes that pass on propagated contents."""

    @classmethod
    def of(cls, model: onnx.ModelProto) -> _Followed:
        integers = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
        constants = {tensor.name for tensor in model.graph.initializer if tensor.data_type in integers}
        opset = opsets_of(model.opset_import).get("", 1)
        followed = cls(constants, frozenset(map(key_of, model.functions)), opset)
        propagated_names: set[str] = set()
        for position, node in enumerate(model.graph.node):
            followed._visit(position, node, propagated_names)
        return followed

    def _visit(self, position: int, node: onnx.NodeProto, propagated_names: set[str]) -> None:
        op_type = node.op_type
        inside = op_type in RUNNING_GRAPHS or (bool(self.functions) and key_of(node) in self.functions)
        self.matters = (
            self.matters or inside or (bool(propagated_names) and not propagated_names.isdisjoint(node.input))
        )
        if inside or op_type in _HANDING_ON:
            self.handing_on.append(position)
        if op_type not in _FOLLOWED or plain_domain(node.domain):
            return
        reads = node.input[:1] if op_type in _OF_FIRST else node.input
        if op_type in _MEASURING or not self.names.isdisjoint(reads):
            propagated_names.update(node.output)
            self.names.update(node.output)

    def guarded(self, model: onnx.ModelProto, types: Types) -> onnx.ModelProto:
        all_types = {**types, **{tensor.name: tensor_info(tensor) for tensor in model.graph.initializer}}
        free = {size.dim_param for info in model.graph.input for size in info.type.tensor_type.shape.dim}
        instead: dict[int, onnx.NodeProto | None] = {}
        for position in self.handing_on:
            node = model.graph.node[position]
            reads = filter(None, (*node.input, *captured_names(node)))
            if any(self._is_long(name, all_types, free, strict=node.op_type not in _HANDING_ON) for name in reads):
                instead[position] = self._alike(node)
        if not instead:
            return model
        nodes = [instead.get(position, node) for position, node in enumerate(model.graph.node)]
        guarded = with_nodes(model, (node for node in nodes if node is not None))
        left_out = [model.graph.node[position] for position, node in instead.items() if node is None]
        guarded.graph.input.extend(types[name] for node in left_out for name in node.output if name in types)
        return guarded

    def _is_long(self, name: str, types: Types, free: set[str], *, strict: bool) -> bool:
        """Return whether a value is longer than any shape, or, unless `strict`, may be longer."""
        shape = value_of(types[name]).shape if name in types else None
        if shape is None or (len(shape) == 1 and isinstance(shape[0], str) and shape[0] not in free):
            return not strict and name not in self.names
        return len(shape) == 1 and isinstance(shape[0], int) and shape[0] > _LONGEST_SHAPE

    def _alike(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return a similar node that does not propagate contents, or None to replace its results by inputs."""
        if node.op_type not in _ALIKE or plain_domain(node.domain):
            return None
        return helper.make_node("Max", node.input, node.output, node.name) if self.opset >= _ALIKE_SINCE else node
