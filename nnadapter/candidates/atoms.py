"""Atoms: nodes that get one verdict together, splits of refused atoms, and expansion of function ops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from nnadapter.converters.convert import Conversion, PerNodeConversions, convert_per_node
from nnadapter.converters.quantized_groups import Group, find_groups, shared_sources
from nnadapter.ir.model import Model
from nnadapter.ir.passes import run_passes
from nnadapter.onnx.inlining import Bodies
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.preparation.device_forms import function_body
from nnadapter.onnx.preparation.prepare import Prepared, Specialized
from nnadapter.records import dataclass, replace
from partition.graph import Graph, GraphError, Node, Reason, Unsupported, Verdict

FUSIONS = ("fuse_layer_normalization", "fuse_gelu", "fuse_hard_swish", "fuse_swish", "fuse_attention")
"""Passes that fuse operations."""
_INTO_PRODUCTS = ("fuse_batch_normalization", "fuse_activation")


def captured_names(graph: Graph) -> tuple[str, ...]:
    """Return the names of outer-graph values that subgraphs read."""
    return tuple(dict.fromkeys(name for node in graph.nodes for name in node.captured))


def groups_of(specialized: Specialized, visible_values: Collection[str] = ()) -> tuple[Group, ...]:
    """Return the node groups that convert to one operation each without hiding `visible_values`."""
    graph = specialized.graph
    return find_groups(specialized.nodes, {*graph.outputs, *captured_names(graph)}, visible_values)


def with_own_sources(specialized: Specialized, visible_values: Collection[str] = ()) -> Specialized:
    """Return the model with a copy of each shared DequantizeLinear per group, so that no boundary splits a group."""
    groups, graph = groups_of(specialized, visible_values), specialized.graph
    shared = shared_sources(groups, specialized.nodes, {*graph.outputs, *captured_names(graph)}) if groups else {}
    if not shared:
        return specialized
    nodes, protos, positions = list(graph.nodes), list(specialized.nodes), specialized.positions
    values, copies = dict(graph.values), dict[int, list[tuple[str, str]]]()
    for source, numbers in shared.items():
        value_name = nodes[source].outputs[0]
        copies[source] = []
        for number in numbers:
            reader = groups[number].node
            copy_name = f"{value_name} for {nodes[reader].name}"
            copies[source].append((f"{nodes[source].name} for {nodes[reader].name}", copy_name))
            values[copy_name] = replace(graph.value(value_name), name=copy_name)
            nodes[reader] = _reading(nodes[reader], value_name, copy_name)
            protos[reader] = _reading(protos[reader], value_name, copy_name)
    order = [(index, copy) for index in range(len(nodes)) for copy in (None, *copies.get(index, ()))]
    all_nodes = tuple(_copied(nodes[index], copy) for index, copy in order)
    return replace(
        specialized,
        graph=replace(graph, nodes=all_nodes, values=values, atoms=()),
        nodes=tuple(_copied(protos[index], copy) for index, copy in order),
        positions=tuple(positions[index] for index, _ in order),
    )


_AnyNode = TypeVar("_AnyNode", Node, OnnxNode)


def _reading(node: _AnyNode, old_name: str, new_name: str) -> _AnyNode:
    return replace(node, inputs=tuple(new_name if name == old_name else name for name in node.inputs))


def _copied(node: _AnyNode, copy: tuple[str, str] | None) -> _AnyNode:
    return node if copy is None else replace(node, name=copy[0], outputs=(copy[1],))


def with_atoms(
    specialized: Specialized, conversion: Conversion, visible_values: Collection[str] = ()
) -> tuple[Specialized, Conversion]:
    """Return the model with fused groups as atoms, and one operation for each.

    `Conversion.operations` lists each operation at only one node of the atom. Groups that would make the graph cyclic
    are omitted. `visible_values` must stay visible outside of groups.
    """
    visible_model = _with_visible_outputs(conversion, visible_values)
    fused = run_passes(visible_model, FUSIONS)
    if fused is visible_model and not conversion.groups:
        return specialized, conversion
    groups = _groups(conversion, fused)
    atoms = joined(len(specialized.nodes), [*groups, *conversion.groups])
    if len(atoms) == len(specialized.nodes):
        return specialized, conversion
    try:
        graph = replace(specialized.graph, atoms=atoms)
    except GraphError:
        return specialized, conversion
    return replace(specialized, graph=graph), _conversion(specialized, conversion, fused, groups)


def with_per_node_conversions(specialized: Specialized, conversion: Conversion) -> Conversion:
    """Return `conversion` with `one_by_one`, which converts the nodes of multi-node atoms individually."""
    is_trivial = not conversion.groups and len(specialized.graph.atoms) == len(specialized.nodes)
    return (
        conversion
        if is_trivial
        else replace(conversion, one_by_one=partial(_per_node_conversions, specialized, conversion.groups))
    )


def _per_node_conversions(specialized: Specialized, groups: Sequence[tuple[int, ...]]) -> PerNodeConversions:
    graph = specialized.graph
    members = sorted({node for atom in (*graph.atoms, *groups) if len(atom) > 1 for node in atom})
    read = {*graph.outputs, *graph.consumers}
    lone_conversion = convert_per_node(members, specialized.nodes, graph.values, specialized.constants, read)
    first = {position: node for node, position in reversed(tuple(enumerate(specialized.positions)))}
    copies = tuple(node for node, position in enumerate(specialized.positions) if first[position] != node)
    return replace(lone_conversion, copies=copies)


def commonly_fused_groups(conversion: Conversion) -> tuple[tuple[int, ...], ...]:
    """Return the groups of nodes that drivers usually fuse, such as a convolution and its activation."""
    fused = run_passes(conversion.model, (*FUSIONS, *_INTO_PRODUCTS))
    return tuple(group for group in _groups(conversion, fused) if len(group) > 1)


def inside(graph: Graph, atom: int) -> frozenset[str]:
    """Return the values that only nodes of the atom read."""
    members = graph.atoms[atom]
    results = [name for node in members for name in graph.nodes[node].outputs if name and name not in graph.outputs]
    return frozenset(name for name in results if set(graph.consumers.get(name, ())) <= set(members))


def _with_visible_outputs(conversion: Conversion, visible_values: Collection[str]) -> Model:
    model = conversion.model
    visible_operands = [conversion.operand_of[name] for name in visible_values if name in conversion.operand_of]
    outputs = tuple(dict.fromkeys((*model.outputs, *visible_operands)))
    return Model(model.operands, model.operations, model.inputs, outputs) if visible_operands else model


def _groups(conversion: Conversion, fused: Model) -> list[tuple[int, ...]]:
    operations = conversion.model.operations
    node_of = {
        operations[index].origins[0]: node for node, indices in enumerate(conversion.operations) for index in indices
    }
    tables = {operations[table].origins[0] for table in conversion.tables}
    return [
        tuple(sorted({node_of[name] for name in operation.origins if name not in tables}))
        for operation in fused.operations
    ]


def joined(nodes: int, groups: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the connected components of nodes that share groups (union-find), ordered by their last nodes."""
    leader = list(range(nodes))

    def find(node: int) -> int:
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for group in groups:
        for node in group[1:]:
            leader[find(node)] = find(group[0])
    members: dict[int, list[int]] = {}
    for node in range(nodes):
        members.setdefault(find(node), []).append(node)
    return tuple(sorted(map(tuple, members.values()), key=lambda atom: atom[-1]))


def _conversion(
    specialized: Specialized, conversion: Conversion, fused: Model, groups: Sequence[tuple[int, ...]]
) -> Conversion:
    names = [node.name for node in specialized.graph.nodes]
    place = {name: position for position, name in enumerate(names)}
    group_of_node = {node: group for group in conversion.groups for node in group}
    operations_by_node: list[list[int]] = [[] for _ in names]
    operations, tables = [], set()
    for position, (operation, group) in enumerate(zip(fused.operations, groups, strict=True)):
        if not group:
            tables.add(position)
            operations.append(operation)
            continue
        members = sorted({member for node in group for member in group_of_node.get(node, (node,))}, reverse=True)
        origins = tuple(dict.fromkeys((*operation.origins, *(names[node] for node in members))))
        operations_by_node[place[origins[0]]].append(position)
        operations.append(replace(operation, origins=origins))
    operand_indices = {operand.name: index for index, operand in enumerate(fused.operands)}
    outputs = fused.outputs[: len(conversion.model.outputs)]
    return replace(
        conversion,
        model=Model(fused.operands, tuple(operations), fused.inputs, outputs),
        operations=tuple(map(tuple, operations_by_node)),
        tables=frozenset(tables),
        operand_of={name: operand_indices[name] for name in conversion.operand_of if name in operand_indices},
    )


Answers = Sequence[Sequence[Verdict]]
"""Verdicts of each accelerator, the most preferred first, with one verdict per atom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Multi-node atom that the most preferred device refused; its nodes may be offered one by one."""

    nodes: tuple[str, ...]
    inside: frozenset[str]
    refusal_count: int | None
    """Number of devices that refused it before one accepted; None if all refused."""


def atoms_to_split(graph: Graph, answers: Answers) -> Iterator[Offer]:
    """Yield the multi-node atoms that the most preferred device refuses."""
    for atom, nodes in enumerate(graph.atoms if answers else ()):
        if len(nodes) == 1:  # most atoms
            continue
        taker = next((place for place, device_verdicts in enumerate(answers) if device_verdicts[atom]), None)
        if taker != 0:
            names = tuple(graph.nodes[node].name for node in nodes)
            yield Offer(nodes=names, inside=inside(graph, atom), refusal_count=taker)


def accepted_splits(offered: Sequence[Offer], graph: Graph, answers: Answers) -> list[Offer]:
    """Return the offers to split: no device takes the atom, or one node gets a more preferred device than the atom."""
    atom_of = {graph.nodes[node].name: atom for atom, nodes in enumerate(graph.atoms) for node in nodes}
    return [
        offer
        for offer in offered
        if offer.refusal_count is None
        or any(
            device_verdicts[atom_of[name]]
            for device_verdicts in answers[: offer.refusal_count]
            for name in offer.nodes
            if name in atom_of
        )
    ]


_EXPANDABLE_REASONS = frozenset(
    [
        Reason.UNSUPPORTED_OPERATION,
        Reason.UNSUPPORTED_VERSION,
        Reason.UNSUPPORTED_DOMAIN,
        Reason.UNSUPPORTED_ATTRIBUTE,
        Reason.UNSUPPORTED_RANK,
        Reason.NOT_CONSTANT,
        Reason.DEVICE_REFUSED,
    ]
)
AT_ALL_SHAPES = frozenset(
    [
        Reason.UNSUPPORTED_OPERATION,
        Reason.UNSUPPORTED_VERSION,
        Reason.UNSUPPORTED_DOMAIN,
        Reason.UNSUPPORTED_DTYPE,
        Reason.UNSUPPORTED_TYPE,
        Reason.NOT_CONSTANT,
        Reason.CONTROL_FLOW,
        Reason.SWITCHED_OFF,
    ]
)
"""Reasons that hold at all shapes. UNSUPPORTED_ATTRIBUTE is missing: support of an attribute may depend on sizes."""
ASSUMED_PERMANENT = AT_ALL_SHAPES | {
    Reason.RULE,
    Reason.DATA_DEPENDENT_SHAPE,
    Reason.DYNAMIC_SHAPE,
    Reason.UNSUPPORTED_RANK,
}
"""`AT_ALL_SHAPES`, and reasons that are assumed to hold at all shapes."""


def bodies_to_try(
    prepared: Prepared, specialized: Specialized, answers: Answers, tried_names: Collection[str] = ()
) -> Bodies:
    """Return the bodies of refused ONNX function ops that may be expanded, by node name."""
    graph = specialized.graph
    refused = (
        [node for node in _refused(graph, answers) if graph.nodes[node].name not in tried_names] if answers else []
    )
    bodies = {graph.nodes[node].name: function_body(prepared, specialized.positions[node]) for node in refused}
    return {name: body for name, body in bodies.items() if body is not None}


def _refused(graph: Graph, answers: Answers) -> Iterator[int]:
    for atom, nodes in enumerate(graph.atoms):
        verdicts = [device_verdicts[atom] for device_verdicts in answers]
        if len(nodes) == 1 and not any(verdicts):
            reasons = {verdict.reason for verdict in verdicts if isinstance(verdict, Unsupported)}
            if reasons & _EXPANDABLE_REASONS and Reason.SWITCHED_OFF not in reasons:
                yield nodes[0]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Outcome of expanding refused ONNX function ops into their bodies."""

    worthwhile: Bodies
    """Bodies by node name; devices support every part."""
    unexpandable: frozenset[str]
    """Nodes that could not be expanded, or that have a part refused at all shapes."""
    assumed_unexpandable: frozenset[str]
    """`unexpandable`, and nodes that have a part assumed to be refused at all shapes."""


def trial_of(
    bodies: Bodies,
    original_names: Sequence[str],
    graph: Graph,
    answers: Answers,
    unplaceable: Collection[str] = (),
    all_answers: Answers = (),
) -> Trial:
    """Return the outcome of an expansion.

    `original_names` has the original node of each node of the expanded `graph`. `answers` are from accelerators,
    `all_answers` from all devices. Only `unplaceable` nodes need `all_answers`: no device supports them unexpanded.
    """
    is_taken: dict[str, bool] = {}
    unexpandable, assumed_unexpandable = set[str](), set[str]()
    for atom, nodes in enumerate(graph.atoms):
        accelerator_verdicts = [device_verdicts[atom] for device_verdicts in answers]
        device_verdicts_of_atom = [device_verdicts[atom] for device_verdicts in all_answers]
        for node in nodes:
            source_name = original_names[node]
            if source_name in bodies:
                verdicts = device_verdicts_of_atom if source_name in unplaceable else accelerator_verdicts
                is_taken[source_name] = is_taken.get(source_name, True) and any(verdicts)
                if graph.nodes[node].name == source_name or _is_permanent(verdicts):
                    unexpandable.add(source_name)
                elif _is_permanent(verdicts, ASSUMED_PERMANENT):
                    assumed_unexpandable.add(source_name)
    worthwhile = {name: bodies[name] for name, yes in is_taken.items() if yes}
    return Trial(worthwhile, frozenset(unexpandable), frozenset(unexpandable | assumed_unexpandable))


def unplaceable_nodes(graph: Graph, all_answers: Answers) -> frozenset[str]:
    """Return the nodes that no device takes, not even a host."""
    atoms = (nodes for atom, nodes in enumerate(graph.atoms) if not any(verdicts[atom] for verdicts in all_answers))
    return frozenset(graph.nodes[node].name for nodes in atoms for node in nodes)


def permanently_refused_nodes(graph: Graph, answers: Answers) -> set[str]:
    """Return the nodes that every device refuses at all shapes."""
    return {
        graph.nodes[node].name
        for atom, nodes in enumerate(graph.atoms)
        if _is_permanent([device_verdicts[atom] for device_verdicts in answers])
        for node in nodes
    }


def _is_permanent(verdicts: Sequence[Verdict], reasons: Collection[Reason] = AT_ALL_SHAPES) -> bool:
    return all(isinstance(verdict, Unsupported) and verdict.reason in reasons for verdict in verdicts)
