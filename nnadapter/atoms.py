"""Atoms: nodes of a graph that stand for one thing, and get one verdict.

What exporters spell out (GELU, layer normalisation) is one operation to most devices, and what surrounds a quantised
operator (DequantizeLinear before, QuantizeLinear behind) belongs to it. Such groups are recognised after conversion, by
the passes that drivers use (`ir.passes`): there, all versions of an op are one. Operations say which nodes they stand
for, so a fused one tells its group.

A device that refuses a group is asked for its nodes one by one: the values inside the group are kept apart, and the
model is converted once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from nnadapter.converters.convert import Conversion
from nnadapter.ir.model import Model
from nnadapter.ir.passes import run_passes
from nnadapter.preparation.prepare import Specialised
from partition.graph import Graph, GraphError, Node
from partition.verdict import SUPPORTED, Verdict

FUSIONS = ("fuse_layer_normalization", "fuse_gelu", "fuse_hard_swish", "fuse_swish")
"""Passes that make one operation of several; those that fold constants are left to drivers."""

_REPEATED = frozenset({"DequantizeLinear"})
"""Ops that a group may have for itself though others read the result: to compute them again costs next to nothing."""


def with_atoms(
    specialised: Specialised, conversion: Conversion, apart: Collection[str] = ()
) -> tuple[Specialised, Conversion]:
    """Return the same with groups of nodes as atoms, and one operation for each.

    1. A node belongs to one atom. A DequantizeLinear whose result several groups read is repeated, once for each.
    2. An operation stands at the last node of its atom; the other nodes have none, and are taken if it is.
    3. Groups that could not run one after the other are not made.

    Args:
        specialised: the graph, every atom one node.
        conversion: of that graph, node by node.
        apart: values that no group may hold inside.
    """
    model = _numbered(conversion, apart)
    fused = run_passes(model, FUSIONS)
    if fused is model:
        return specialised, conversion
    node_of = {operation: node for node, made in enumerate(conversion.operations) for operation in made}
    groups = [tuple(sorted({node_of[int(origin)] for origin in each.origins})) for each in fused.operations]
    regrouped = _Regrouped.of(specialised.graph.nodes, groups)
    try:
        return _specialised(specialised, regrouped), _conversion(specialised, conversion, fused, regrouped)
    except GraphError:
        return specialised, conversion


def inside(graph: Graph, atom: int) -> frozenset[str]:
    """The values that only the atom's own nodes read."""
    members = graph.atoms[atom]
    made = [name for node in members for name in graph.nodes[node].outputs if name and name not in graph.outputs]
    return frozenset(name for name in made if set(graph.consumers.get(name, ())) <= set(members))


def _numbered(conversion: Conversion, apart: Collection[str]) -> Model:
    """The model, each operation's position as its origin, and what is kept apart as outputs, which no pass fuses."""
    model = conversion.model
    operations = tuple(
        replace(operation, origins=(str(position),)) for position, operation in enumerate(model.operations)
    )
    kept = [conversion.operand_of[name] for name in apart if name in conversion.operand_of]
    return Model(model.operands, operations, model.inputs, tuple(dict.fromkeys((*model.outputs, *kept))))


@dataclass(frozen=True, slots=True, eq=False)
class _Regrouped:
    """Nodes, some repeated, and the groups that they form."""

    nodes: tuple[Node, ...]
    sources: tuple[int, ...]
    """Per node, the one that it was before."""
    groups: tuple[tuple[int, ...], ...]
    """Per operation, its nodes, ascending."""

    @classmethod
    def of(cls, nodes: Sequence[Node], groups: Sequence[tuple[int, ...]]) -> _Regrouped:
        """Repeat what several groups hold, where it may be repeated."""
        uses = Counter(node for group in groups for node in group)
        alone = {group[0] for group in groups if len(group) == 1}
        shared = {node for node, count in uses.items() if count > 1 and nodes[node].op_type in _REPEATED}
        copies: dict[int, list[int]] = {}
        taken = set(alone)
        for position, group in enumerate(groups):
            for node in group if len(group) > 1 else ():
                if node in shared and node in taken:
                    copies.setdefault(node, []).append(position)
                taken.add(node)
        return (
            cls._with_copies(nodes, groups, copies)
            if copies
            else cls(tuple(nodes), tuple(range(len(nodes))), tuple(groups))
        )

    @classmethod
    def _with_copies(
        cls, nodes: Sequence[Node], groups: Sequence[tuple[int, ...]], copies: dict[int, list[int]]
    ) -> _Regrouped:
        made: list[Node] = []
        sources: list[int] = []
        place: dict[int, int] = {}
        copied: dict[tuple[int, int], int] = {}
        for index, node in enumerate(nodes):
            place[index] = len(made)
            made.append(node)
            sources.append(index)
            for position in copies.get(index, ()):
                copied[position, index] = len(made)
                owner = nodes[groups[position][-1]].name
                made.append(replace(node, name=f"{node.name} for {owner}", outputs=(f"{node.outputs[0]} for {owner}",)))
                sources.append(index)
        regrouped = tuple(
            tuple(sorted(copied.get((position, node), place[node]) for node in group))
            for position, group in enumerate(groups)
        )
        for (position, index), copy in copied.items():
            old, new = nodes[index].outputs[0], made[copy].outputs[0]
            for member in regrouped[position]:
                inputs = tuple(new if name == old else name for name in made[member].inputs)
                made[member] = replace(made[member], inputs=inputs)
        return cls(tuple(made), tuple(sources), regrouped)

    def atoms(self) -> tuple[tuple[int, ...], ...]:
        """Nodes that have an operation in common together, in an order in which they can run."""
        leader = list(range(len(self.nodes)))

        def find(node: int) -> int:
            while leader[node] != node:
                leader[node] = leader[leader[node]]
                node = leader[node]
            return node

        for group in self.groups:
            for node in group[1:]:
                leader[find(node)] = find(group[0])
        members: dict[int, list[int]] = {}
        for node in range(len(self.nodes)):
            members.setdefault(find(node), []).append(node)
        return tuple(sorted(map(tuple, members.values()), key=lambda atom: atom[-1]))


def _specialised(specialised: Specialised, regrouped: _Regrouped) -> Specialised:
    graph = specialised.graph
    values = dict(graph.values)
    for node, source in zip(regrouped.nodes, regrouped.sources, strict=True):
        before = graph.nodes[source].outputs
        values.update(
            (name, replace(values[old], name=name))
            for name, old in zip(node.outputs, before, strict=True)
            if name not in values and old in values
        )
    return replace(
        specialised,
        graph=Graph(regrouped.nodes, values, graph.constants, graph.inputs, graph.outputs, regrouped.atoms()),
        nodes=tuple(specialised.nodes[source] for source in regrouped.sources),
        positions=tuple(specialised.positions[source] for source in regrouped.sources),
    )


def _conversion(specialised: Specialised, conversion: Conversion, fused: Model, regrouped: _Regrouped) -> Conversion:
    names = [node.name for node in specialised.graph.nodes]
    operations = tuple(
        replace(operation, origins=tuple(dict.fromkeys(names[regrouped.sources[node]] for node in reversed(group))))
        for operation, group in zip(fused.operations, regrouped.groups, strict=True)
    )
    made: list[list[int]] = [[] for _ in regrouped.nodes]
    for position, group in enumerate(regrouped.groups):
        made[group[-1]].append(position)
    found = {operand.name: index for index, operand in enumerate(fused.operands)}
    return Conversion(
        model=Model(fused.operands, operations, fused.inputs, fused.outputs[: len(conversion.model.outputs)]),
        verdicts=tuple(_verdicts(conversion, regrouped)),
        operations=tuple(map(tuple, made)),
        operand_of={name: found[name] for name in conversion.operand_of if name in found},
    )


def _verdicts(conversion: Conversion, regrouped: _Regrouped) -> Iterator[Verdict]:
    copied: set[int] = set()
    for source in regrouped.sources:
        yield SUPPORTED if source in copied else conversion.verdicts[source]
        copied.add(source)
