"""Functions: nodes that are written down as graphs of other nodes, and are replaced by them.

A function of the model's own is expanded where at least one op of its body has a converter, since no device knows it by
name. One that ONNX defines is expanded where it has no converter itself and all of its body has, since ONNX Runtime may
have a kernel for the whole. Others are expanded where no device takes them whole (`nnadapter/offering/expansions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from nnadapter.onnx.building import copied, with_nodes
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.graphs import node_names
from nnadapter.onnx.nodes import graphs_of, key_of, opsets_of, with_nested
from nnadapter.onnx.operators import Operators
from nnadapter.onnx.schema_functions import schema_body
from nnadapter.onnx.schemas import since_version
from partition.graph import Node

_DEEPEST = 16
"""Functions that call functions, at most; a function that calls itself is not valid ONNX."""

_SAME_SINCE = {
    "Cast": 13,
    "CastLike": 15,
    "Constant": 12,
    "ConstantOfShape": 9,
    "Equal": 13,
    "Flatten": 13,
    "Identity": 13,
    "ReduceMax": 18,
    "ReduceMin": 18,
    "Reshape": 13,
    "Shape": 13,
    "Size": 13,
    "Squeeze": 13,
    "Transpose": 13,
    "Unsqueeze": 13,
}
"""Ops of function bodies whose later versions, to opset 28, add only data types, and attributes that change nothing
unless they are stated, and the first such version."""

Opsets = Mapping[str, int]
Bodies = Mapping[str, onnx.FunctionProto]
"""Nodes, by name, and the function that each is."""


def expand_functions(
    model: onnx.ModelProto,
    operators: Operators,
    bodies: Bodies = {},  # noqa: B006
    nodes: Sequence[Node] | None = None,
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model with functions expanded, the same object if there is nothing to expand; and origins.

    1. Nodes of the graph are looked at, and those that come in their place; sub-graphs are left as they are.
    2. A body is taken only if each of its ops means the same under the operator sets that the model imports.
    3. Names inside are made unique by the name of the node's first output; nodes are called `node/inner node`. Other
       nodes keep the names that `node_names` gives them, so that they go by these in the new model too.
    4. Weights are copied only where something is expanded.

    Args:
        model: the model.
        operators: which of them have converters.
        bodies: nodes to expand although an op of that name can be converted whole.
        nodes: of the model's graph, where they have been read already.

    Returns:
        The model, and for each of its nodes the name of the node of the model as it was.
    """
    library = _Library.of(model, operators, bodies)
    names = node_names(model) if nodes is None else tuple(node.name for node in nodes)
    if nodes is not None and library.leaves(nodes):
        return model, names
    stays = [library.body(node, name) is None for node, name in zip(model.graph.node, names, strict=True)]
    if all(stays):
        return model, names
    existing_names = {name for node in with_nested(model.graph.node) for name in (*node.input, *node.output)}
    existing_names.update(value.name for value in (*model.graph.input, *model.graph.initializer))
    existing_names.update(names)
    parts = [
        [*library.expanded(node, name, existing_names)] for node, name in zip(model.graph.node, names, strict=True)
    ]
    expanded = with_nodes(model, (expanded_node for part in parts for expanded_node in part))
    origins = [(name, stay) for part, name, stay in zip(parts, names, stays, strict=True) for _ in part]
    for expanded_node, (name, stay) in zip(expanded.graph.node, origins, strict=True):
        expanded_node.name = name if stay else expanded_node.name
    library.opsets.setdefault("", _SAME_SINCE["Identity"])  # which copies are, where nothing else is ONNX's own
    imported = opsets_of(model.opset_import)
    added_opsets = ((domain, version) for domain, version in library.opsets.items() if domain not in imported)
    expanded.opset_import.extend(onnx.helper.make_opsetid(*opset) for opset in added_opsets)
    return expanded, tuple(name for name, _ in origins)


@dataclass(frozen=True, slots=True)
class _Library:
    """The functions that a model's nodes may mean."""

    own: Mapping[tuple[str, str, str], onnx.FunctionProto]
    opsets: dict[str, int]
    """What the model imports, and what expanded bodies added to it."""
    operators: Operators
    wanted: Bodies

    @classmethod
    def of(cls, model: onnx.ModelProto, operators: Operators, bodies: Bodies) -> _Library:
        return cls(
            {key_of(function): function for function in model.functions},
            opsets_of(model.opset_import),
            operators,
            bodies,
        )

    def body(self, node: onnx.NodeProto, name: str) -> onnx.FunctionProto | None:
        """The function that the node is replaced by, None if it stays."""
        if name in self.wanted:
            return self._usable(self.wanted[name])
        domain = plain_domain(node.domain)
        function = self.own.get(key_of(node))
        if function is not None:
            are_convertible = [
                self._is_convertible(inner_node, opsets_of(function.opset_import)) for inner_node in function.node
            ]
            return function if any(are_convertible) and self._means_the_same(function) else None
        return self._schema_body(domain, node.op_type)

    def leaves(self, nodes: Iterable[Node]) -> bool:
        """Whether it is plain from their op types alone that all of some nodes stay."""
        if self.own or self.wanted:
            return False
        return all(self._schema_body(*kind) is None for kind in {(node.domain, node.op_type) for node in nodes})

    def _schema_body(self, domain: str, op_type: str) -> onnx.FunctionProto | None:
        version = since_version(domain, op_type, self.opsets.get(domain, 0))
        if version is None or self.operators.has_converter(domain, op_type, version):
            return None
        body = schema_body(op_type, version, domain)
        return None if body is None else self._usable(body)

    def _usable(self, body: onnx.FunctionProto) -> onnx.FunctionProto | None:
        if not self._means_the_same(body):
            return None
        return body if all(self._is_convertible(node, opsets_of(body.opset_import)) for node in body.node) else None

    def expanded(
        self, node: onnx.NodeProto, name: str, existing_names: set[str], depth: int = _DEEPEST
    ) -> Iterator[onnx.NodeProto]:
        """The nodes in the place of one, which is called `name`; `existing_names` are names, to which new ones go."""
        body = self.body(node, name) if depth else None
        if body is None:
            yield node
            return
        for domain, version in opsets_of(body.opset_import).items():
            self.opsets.setdefault(domain, version)
        for inner_node in _instance(body, node, name, existing_names):
            yield from self.expanded(inner_node, inner_node.name, existing_names, depth - 1)

    def _is_convertible(self, node: onnx.NodeProto, opsets: Opsets) -> bool:
        domain = plain_domain(node.domain)
        if key_of(node) in self.own or node.op_type == "Constant":
            return True
        version = since_version(domain, node.op_type, opsets.get(domain, 0))
        return version is not None and self.operators.has_converter(domain, node.op_type, version)

    def _means_the_same(self, body: onnx.FunctionProto) -> bool:
        stated = opsets_of(body.opset_import)
        return all(self._same_version(node, stated) for node in with_nested(body.node))

    def _same_version(self, node: onnx.NodeProto, stated: Opsets) -> bool:
        domain = plain_domain(node.domain)
        if domain not in self.opsets:
            return True
        meant = since_version(domain, node.op_type, stated.get(domain, 0))
        model_version = since_version(domain, node.op_type, self.opsets[domain])
        since = _SAME_SINCE.get(node.op_type) if not domain else None
        return meant == model_version or bool(since and meant and model_version and min(meant, model_version) >= since)


def _instance(
    body: onnx.FunctionProto, node: onnx.NodeProto, name: str, existing_names: set[str]
) -> list[onnx.NodeProto]:
    """The body's nodes with the names and attributes of one call.

    An output that is an input as well, or that was listed before, is copied by an Identity.
    """
    call = _FunctionCall(
        next(filter(None, node.output), name),
        existing_names,
        {attribute.name: attribute for attribute in body.attribute_proto},
    )
    call.attributes.update((attribute.name, attribute) for attribute in node.attribute)
    call.names.update(zip(body.input, [*node.input, *[""] * (len(body.input) - len(node.input))], strict=False))
    copies = call.take_outputs(body.output, node.output)
    nodes = [*map(call.node, body.node), *copies]
    for index, inner_node in enumerate(nodes):
        inner_node.name = _free_name(f"{name}/{inner_node.name or f'{inner_node.op_type}@{index}'}", existing_names)
    return nodes


def _free_name(stem: str, existing_names: set[str]) -> str:
    """A name that is not taken yet, and is from now on."""
    name, number = stem, 1
    while name in existing_names:
        number += 1
        name = f"{stem}.{number}"
    existing_names.add(name)
    return name


@dataclass(slots=True)
class _FunctionCall:
    """One call of a function: what names and attributes of its body stand for."""

    prefix: str
    taken: set[str]
    attributes: dict[str, onnx.AttributeProto]
    names: dict[str, str] = field(default_factory=dict)

    def take_outputs(self, inside: Iterable[str], outside: Iterable[str]) -> list[onnx.NodeProto]:
        """Let the body's outputs be those of the call; nodes that copy what stands for something else already."""
        copies = []
        for inner, outer in zip(inside, outside, strict=False):
            if outer and inner in self.names:
                copies.append(onnx.helper.make_node("Identity", [self.names[inner]], [outer]))
            elif outer:
                self.names[inner] = outer
        return copies

    def node(self, inner: onnx.NodeProto) -> onnx.NodeProto:
        """A node of the body, or of a sub-graph in it, as the call has it."""
        node = copied(inner)
        node.input[:] = map(self._name, inner.input)
        node.output[:] = map(self._name, inner.output)
        del node.attribute[:]
        node.attribute.extend(self._attributes(inner.attribute))
        return node

    def _name(self, inner: str) -> str:
        if inner and inner not in self.names:
            self.names[inner] = _free_name(f"{self.prefix}/{inner}", self.taken)
        return self.names[inner] if inner else ""

    def _attributes(self, stated: Iterable[onnx.AttributeProto]) -> Iterator[onnx.AttributeProto]:
        """What a node in a body states; what refers to an attribute of the call is taken from there, or left out."""
        for attribute in stated:
            referred = attribute.ref_attr_name
            source = self.attributes.get(referred) if referred else attribute
            if source is None:
                continue
            attribute_copy = copied(source)
            attribute_copy.name = attribute.name
            for graph in () if referred else graphs_of(attribute_copy):
                self._rename(graph)
            yield attribute_copy

    def _rename(self, graph: onnx.GraphProto) -> None:
        for info in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            info.name = self._name(info.name)
        nodes = [self.node(node) for node in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
