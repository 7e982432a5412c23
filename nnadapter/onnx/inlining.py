"""Inlining of functions and If branches.

A model-local function is expanded if a converter exists for an op of its body, since no device knows it by name. A
function op of ONNX, for which ONNX Runtime may have a kernel, is expanded only if converters exist for its body but not
for itself. Other function ops are expanded if no device takes the op (`nnadapter/candidates/atoms.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import onnx.defs
from onnx import helper

from nnadapter.onnx.construction import copied, with_nodes
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.graphs import free_name, graphs_of, key_of, node_names, opsets_of, subgraphs, with_nested
from nnadapter.onnx.model import Operators
from nnadapter.onnx.references import bytes_of, fits, is_reference
from nnadapter.onnx.schemas import is_further, since_version
from nnadapter.process.resources import memoize
from nnadapter.records import dataclass, field
from partition.graph import Node


@memoize(1024)
def schema_body(op_type: str, version: int, domain: str) -> onnx.FunctionProto | None:
    """Return the function body that a schema defines for every node of the op, if any."""
    if is_further(domain, op_type, version):
        return None
    schema = onnx.defs.get_schema(op_type, version, domain)
    if not schema.has_function:  # type: ignore[attr-defined]  # the stubs lack it
        return None
    body: onnx.FunctionProto = onnx.FunctionProto.FromString(schema.function_body.SerializeToString())
    return body


def typed_body(
    node: onnx.NodeProto, version: int, domain: str, opset: int, types: Sequence[onnx.TypeProto]
) -> onnx.FunctionProto | None:
    """Return the body that onnx defines for a node with these input types, or None.

    CastLike to a known type becomes Cast, so that constants can be folded.
    """
    if is_further(domain, node.op_type, version):
        return None
    schema = onnx.defs.get_schema(node.op_type, version, domain)
    if schema.has_function:  # type: ignore[attr-defined]
        plain = schema_body(node.op_type, version, domain)
        return None if plain is None else _with_casts(plain, types)
    if not schema.has_context_dependent_function:  # type: ignore[attr-defined]
        return None
    stated = sorted(schema.context_dependent_function_opset_versions)  # type: ignore[attr-defined]
    chosen = max((opset_version for opset_version in stated if opset_version <= opset), default=stated[0])
    serialized_types = [type_proto.SerializeToString() for type_proto in types]
    try:
        serialized_body = schema.get_context_dependent_function_with_opset_version(  # type: ignore[attr-defined]
            chosen, node.SerializeToString(), serialized_types
        )
    except (RuntimeError, ValueError, IndexError):  # onnx's body builders raise assorted errors
        return None
    return _with_casts(onnx.FunctionProto.FromString(serialized_body), types) if serialized_body else None


def _with_casts(body: onnx.FunctionProto, types: Sequence[onnx.TypeProto]) -> onnx.FunctionProto:
    element = {name: type_proto.tensor_type.elem_type for name, type_proto in zip(body.input, types, strict=False)}
    body_copy = copied(body)
    for node in body_copy.node:
        to = element.get(node.input[1]) if node.op_type == "CastLike" else None
        if to:
            node.op_type = "Cast"
            del node.input[1:]
            node.attribute.append(onnx.helper.make_attribute("to", to))
    return body_copy


_DEEPEST = 16
"""Maximum nesting of functions; recursion is invalid."""

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
"""Op -> oldest compatible version: later ones, to opset 28, only add types, and attributes with neutral defaults."""

Opsets = Mapping[str, int]
Bodies = Mapping[str, onnx.FunctionProto]


def expand_functions(
    model: onnx.ModelProto,
    operators: Operators,
    bodies: Bodies = {},  # noqa: B006
    nodes: Sequence[Node] | None = None,
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Expand functions in the main graph; return the model (the same if unchanged), and each node's original name.

    A body is used only if its ops mean the same under the model's opsets. Inner values are prefixed with the expanded
    node's first output, and inner nodes with its name; other nodes are named by `node_names`. `bodies`, by node name,
    take precedence over converters.
    """
    library = _Library.of(model, operators, bodies)
    names = node_names(model) if nodes is None else tuple(node.name for node in nodes)
    if nodes is not None and library.leaves(nodes):
        return model, names
    stays = [library.body(node, name) is None for node, name in zip(model.graph.node, names, strict=True)]
    if all(stays):
        return model, names
    existing_names = _value_names(model.graph).union(names)
    parts = [
        [*library.expanded(node, name, existing_names)] for node, name in zip(model.graph.node, names, strict=True)
    ]
    expanded = with_nodes(model, (expanded_node for part in parts for expanded_node in part))
    origins = [(name, stay) for part, name, stay in zip(parts, names, stays, strict=True) for _ in part]
    for expanded_node, (name, stay) in zip(expanded.graph.node, origins, strict=True):
        expanded_node.name = name if stay else expanded_node.name
    library.opsets.setdefault("", _SAME_SINCE["Identity"])  # for the copies, if no other node is ONNX's own
    imported = opsets_of(model.opset_import)
    added_opsets = ((domain, version) for domain, version in library.opsets.items() if domain not in imported)
    expanded.opset_import.extend(onnx.helper.make_opsetid(*opset) for opset in added_opsets)
    return expanded, tuple(name for name, _ in origins)


@dataclass(frozen=True, slots=True)
class _Library:
    model_functions: Mapping[tuple[str, str, str], onnx.FunctionProto]
    opsets: dict[str, int]
    operators: Operators
    needed_names: Bodies

    @classmethod
    def of(cls, model: onnx.ModelProto, operators: Operators, bodies: Bodies) -> _Library:
        functions = {key_of(function): function for function in model.functions}
        return cls(functions, opsets_of(model.opset_import), operators, bodies)

    def body(self, node: onnx.NodeProto, name: str) -> onnx.FunctionProto | None:
        if name in self.needed_names:
            return self._usable(self.needed_names[name])
        domain = plain_domain(node.domain)
        function = self.model_functions.get(key_of(node))
        if function is not None:
            are_convertible = [
                self._is_convertible(inner_node, opsets_of(function.opset_import)) for inner_node in function.node
            ]
            return function if any(are_convertible) and self._means_the_same(function) else None
        return self._schema_body(domain, node.op_type)

    def leaves(self, nodes: Iterable[Node]) -> bool:
        if self.model_functions or self.needed_names:
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
        """Yield the nodes that replace a node, or the node itself. Adds to `existing_names`."""
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
        if key_of(node) in self.model_functions or node.op_type == "Constant":
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
        inner_node.name = free_name(f"{name}/{inner_node.name or f'{inner_node.op_type}@{index}'}", existing_names)
    return nodes


@dataclass(slots=True)
class _FunctionCall:
    prefix: str
    used_names: set[str]
    attributes: dict[str, onnx.AttributeProto]
    names: dict[str, str] = field(default_factory=dict)

    def take_outputs(self, inside: Iterable[str], outside: Iterable[str]) -> list[onnx.NodeProto]:
        copies = []
        for inner, outer in zip(inside, outside, strict=False):
            if outer and inner in self.names:
                copies.append(onnx.helper.make_node("Identity", [self.names[inner]], [outer]))
            elif outer:
                self.names[inner] = outer
        return copies

    def node(self, inner: onnx.NodeProto) -> onnx.NodeProto:
        node = copied(inner)
        node.input[:] = map(self._name, inner.input)
        node.output[:] = map(self._name, inner.output)
        del node.attribute[:]
        node.attribute.extend(self._attributes(inner.attribute))
        return node

    def _name(self, inner: str) -> str:
        if inner and inner not in self.names:
            self.names[inner] = free_name(f"{self.prefix}/{inner}", self.used_names)
        return self.names[inner] if inner else ""

    def _attributes(self, stated: Iterable[onnx.AttributeProto]) -> Iterator[onnx.AttributeProto]:
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


def inline_branches(
    model: onnx.ModelProto, conditions: Mapping[int, bool]
) -> tuple[onnx.ModelProto, Sequence[tuple[str, int]]]:
    """Replace `If` nodes by a branch. Also return each new node's name, and the position in `model` that it comes from.

    1. Inner nodes and values are prefixed, as in `If_3/Add_1`; names local to nested graphs stay.
    2. Branch outputs take the names of the `If` node's outputs; captured or repeated ones are copied by `Identity`.
    3. Other nodes keep their names, even position-based ones.

    `conditions` maps `If` positions to the condition's value.
    """
    copy = with_nodes(model, ())
    names, stands_for = node_names(model), list[int]()
    existing_names = {name for node in model.graph.node for name in node.output}
    for position, node in enumerate(model.graph.node):
        if position in conditions:
            branch_name = "then_branch" if conditions[position] else "else_branch"
            branch = next(attribute.g for attribute in node.attribute if attribute.name == branch_name)
            _insert(copy.graph, node, _free(names[position], existing_names), branch)
        else:
            copy.graph.node.add().CopyFrom(node)
            copy.graph.node[-1].name = names[position]
        stands_for.extend([position] * (len(copy.graph.node) - len(stands_for)))
    return copy, list(zip(node_names(copy), stands_for, strict=True))


def with_weights_outside(model: onnx.ModelProto) -> onnx.ModelProto:
    """Move large initializers out of `If` branches, so that derived models share them.

    Initializers that a branch outputs stay, as it cannot output a captured value. Initializers inside loops also stay.
    """
    if not any(map(_large, _branches(model.graph))):
        return model
    copy = copied(model)
    existing_names = _value_names(copy.graph)
    for graph in list(_branches(copy.graph)):
        renamed: dict[str, str] = {}
        for tensor in _large(graph):
            renamed[tensor.name] = free_name(f"{graph.name}/{tensor.name}", existing_names)
            outside = copy.graph.initializer.add()
            outside.CopyFrom(tensor)
            outside.name = renamed[tensor.name]
        remaining_tensors = [tensor for tensor in graph.initializer if tensor.name not in renamed]
        del graph.initializer[:]
        graph.initializer.extend(remaining_tensors)
        for node in graph.node:
            _rename(node, renamed)
    return copy


def _value_names(graph: onnx.GraphProto) -> set[str]:
    nodes = list(with_nested(graph.node))
    inner = (subgraph for node in nodes for subgraph in subgraphs(node))
    names = {name for node in nodes for name in (*node.input, *node.output)}
    for graph_proto in (graph, *inner):
        names.update(value.name for value in (*graph_proto.input, *graph_proto.output, *graph_proto.initializer))
        names.update(tensor.values.name for tensor in graph_proto.sparse_initializer)
    return names


def _branches(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        if node.op_type == "If" and plain_domain(node.domain) == "":
            for branch in subgraphs(node):
                yield branch
                yield from _branches(branch)


def _large(branch: onnx.GraphProto) -> list[onnx.TensorProto]:
    interface_names = {value.name for value in (*branch.output, *branch.input)}
    return [
        tensor
        for tensor in branch.initializer
        if tensor.name not in interface_names and not is_reference(tensor) and fits(tensor, bytes_of(tensor))
    ]


def _free(name: str, existing_names: set[str]) -> str:
    while any(value.startswith(f"{name}/") for value in existing_names):
        name += "_"
    return name


def _insert(graph: onnx.GraphProto, node: onnx.NodeProto, name: str, branch: onnx.GraphProto) -> None:
    renamed = _renamed(branch, name)
    defined_names = {output for inner in branch.node for output in inner.output if output}
    passed_on: list[tuple[str, str]] = []
    for result, output_name in zip(branch.output, node.output, strict=False):
        if result.name in defined_names and renamed[result.name] not in node.output:
            renamed[result.name] = output_name or renamed[result.name]
        elif output_name:
            passed_on.append((result.name, output_name))
    for inner, inner_name in zip(branch.node, node_names(onnx.ModelProto(graph=branch)), strict=True):
        added = graph.node.add()
        added.CopyFrom(inner)
        added.name = f"{name}/{inner_name}"
        _rename(added, renamed)
    graph.node.extend(
        helper.make_node("Identity", [renamed.get(source, source)], [output_name], f"{name}/{output_name}")
        for source, output_name in passed_on
    )
    for tensor in branch.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = renamed[tensor.name]
    for sparse in branch.sparse_initializer:
        graph.sparse_initializer.add().CopyFrom(sparse)
        graph.sparse_initializer[-1].values.name = renamed[sparse.values.name]
    for info in branch.value_info:
        if info.name in renamed and renamed[info.name] not in node.output:
            graph.value_info.add().CopyFrom(info)
            graph.value_info[-1].name = renamed[info.name]


def _renamed(branch: onnx.GraphProto, name: str) -> dict[str, str]:
    local_names = [tensor.name for tensor in branch.initializer]
    local_names.extend(sparse.values.name for sparse in branch.sparse_initializer)
    local_names.extend(output for node in branch.node for output in node.output if output)
    return {value: f"{name}/{value}" for value in local_names}


def _rename(node: onnx.NodeProto, renamed: Mapping[str, str]) -> None:
    for names in (node.input, node.output):
        names[:] = [renamed.get(name, name) for name in names]
    for graph in subgraphs(node):
        _rename_captured(graph, renamed)


def _rename_captured(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    local_names = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    local_names.update(output for node in graph.node for output in node.output)
    outer = {name: replacement for name, replacement in renamed.items() if name not in local_names}
    for node in graph.node:
        _rename(node, outer)
    for info in graph.output:
        info.name = outer.get(info.name, info.name)
