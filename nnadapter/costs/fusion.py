"""What a device runs as one, so that it is placed and priced as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nnadapter.converters.convert import Conversion
from nnadapter.drivers.border import ask_admission
from nnadapter.drivers.interface import NO_OPERATION, Context
from nnadapter.ir.model import ABSENT
from nnadapter.offering.atoms import joined
from partition.graph import Graph
from partition.segments import Segment
from partition.verdict import Verdict, all_of

Groups = tuple[tuple[int, ...], ...]

MOST_OPERATIONS = 20_000
"""To say what it fuses a device does most of what it does to compile: some seconds for so many operations."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """What one device makes of a graph."""

    groups: Groups = ()
    """Nodes that run as one, more than one each, in no two groups."""
    free: frozenset[int] = frozenset()
    """Nodes that become nothing."""
    note: str = ""
    """Why nothing is known, where the device was not asked."""


@dataclass(frozen=True, eq=False)
class Merged:
    """A graph whose atoms are joined where a device runs several as one."""

    before: Graph
    graph: Graph
    """The same nodes, fewer atoms."""
    parts: Groups
    """Per atom of `graph`, the atoms of `before` that it holds."""

    def verdicts(self, verdicts_by_device: Mapping[str, Sequence[Verdict]]) -> dict[str, tuple[Verdict, ...]]:
        """Verdicts on the atoms of `before` as verdicts on those of `graph`: the first refusal counts."""
        return {
            device: tuple(all_of(verdicts[atom] for atom in part) for part in self.parts)
            for device, verdicts in verdicts_by_device.items()
        }

    def spread_segment(self, segment: Segment) -> Segment:
        """A segment of the atoms of `graph` as one of the atoms of `before`."""
        return Segment(segment.device, tuple(sorted(atom for part in segment.atoms for atom in self.parts[part])))

    def spread(self, placement: Sequence[str]) -> tuple[str, ...]:
        """A placement of the atoms of `graph` as one of the atoms of `before`."""
        devices = [""] * len(self.before.atoms)
        for device, part in zip(placement, self.parts, strict=True):
            for atom in part:
                devices[atom] = device
        return tuple(devices)


def fused_groups(
    graph: Graph, conversion: Conversion, context: Context, verdicts: Sequence[Verdict], *, most: int = MOST_OPERATIONS
) -> Fusion:
    """Ask a device that takes the adapter IR what it fuses, if it gets everything that it takes.

    Beyond so many operations it is not asked; then each atom is one thing.

    Args:
        graph: with its atoms.
        conversion: of the graph.
        context: the device's.
        verdicts: what it said of each atom.
        most: operations to ask about.
    """
    supported_nodes = [node for atom, verdict in zip(graph.atoms, verdicts, strict=True) if verdict for node in atom]
    operations = sorted(operation for node in supported_nodes for operation in conversion.operations[node])
    if not operations:
        return Fusion()
    if len(operations) > most:
        return Fusion(
            note=f"a device was not asked what it fuses of {len(operations):,} operations, more than "
            f"{most:,}; each atom is priced by itself"
        )
    model = conversion.part(operations, *_boundary_operands(conversion, operations))
    return fusion_of(graph, conversion, operations, ask_admission(context, model).runs_as)


def fusion_of(graph: Graph, conversion: Conversion, operations: Sequence[int], runs_as: Sequence[str]) -> Fusion:
    """Return what operations that run as `runs_as` say of nodes; nothing if they do not say one text for each.

    1. Operations of the same text, and the nodes of their atoms, are one group.
    2. An atom whose operations all cost nothing is free.
    """
    if len(runs_as) != len(operations):
        return Fusion()
    node_of = {
        operation: node for node, node_operations in enumerate(conversion.operations) for operation in node_operations
    }
    together: dict[str, list[int]] = {}
    for operation, text in zip(operations, runs_as, strict=True):
        together.setdefault(text, []).append(graph.atom_of[node_of[operation]])
    free = set(together.pop(NO_OPERATION, ()))
    free.difference_update(atom for atoms in together.values() for atom in atoms)
    groups = [tuple(node for atom in dict.fromkeys(atoms) for node in graph.atoms[atom]) for atoms in together.values()]
    sets = joined(len(graph.nodes), groups)
    return Fusion(
        tuple(nodes for nodes in sets if len(nodes) > 1),
        frozenset(node for atom in free for node in graph.atoms[atom]),
    )


def merged(graph: Graph, fusions: Iterable[Fusion]) -> Merged:
    """Return the graph with the groups of all devices as atoms; groups that could not run one after the other are left.

    Linear in the graph for each round; a round is repeated only where groups were left out.
    """
    multi_node_atoms = [atom for atom in graph.atoms if len(atom) > 1]
    groups = [group for fusion in fusions for group in fusion.groups]
    while True:
        atoms = joined(len(graph.nodes), [*multi_node_atoms, *groups])
        order, stuck = _order(graph, atoms)
        if not stuck:
            break
        nodes = {node for atom in stuck for node in atoms[atom]}
        acyclic_groups = [group for group in groups if nodes.isdisjoint(group)]
        if len(acyclic_groups) == len(groups):  # the graph's own atoms would be at fault, and they are in order
            atoms, order = graph.atoms, range(len(graph.atoms))
            break
        groups = acyclic_groups
    ordered = tuple(atoms[atom] for atom in order)
    parts = tuple(tuple(dict.fromkeys(graph.atom_of[node] for node in nodes)) for nodes in ordered)
    return Merged(graph, replace(graph, atoms=ordered) if ordered != graph.atoms else graph, parts)


def _order(graph: Graph, atoms: Groups) -> tuple[Sequence[int], Sequence[int]]:
    """Atoms in an order in which they can run, and those that are on, or behind, a circle."""
    atom_of = {node: atom for atom, nodes in enumerate(atoms) for node in nodes}
    readers: list[set[int]] = [set() for _ in atoms]
    waiting = [0] * len(atoms)
    for node, graph_node in enumerate(graph.nodes):
        for name in graph_node.reads:
            maker = graph.producer.get(name)
            if maker is not None and atom_of[maker] != atom_of[node] and atom_of[node] not in readers[atom_of[maker]]:
                readers[atom_of[maker]].add(atom_of[node])
                waiting[atom_of[node]] += 1
    order = [atom for atom, count in enumerate(waiting) if not count]
    for atom in order:  # grows while it is walked
        for reader in readers[atom]:
            waiting[reader] -= 1
            if not waiting[reader]:
                order.append(reader)
    return order, [atom for atom, count in enumerate(waiting) if count]


def _boundary_operands(conversion: Conversion, operations: Sequence[int]) -> tuple[list[int], list[int]]:
    """Operands that the operations read and do not make, and those that they make and others read or nobody does."""
    model, inside = conversion.model, set(operations)
    read = dict.fromkeys(
        operand for operation in operations for operand in model.operations[operation].inputs if operand != ABSENT
    )
    produced_operands = [operand for operation in operations for operand in model.operations[operation].outputs]
    produced_set, model_outputs = set(produced_operands), set(model.outputs)
    inputs = [each for each in read if each not in produced_set and model.operands[each].value is None]
    consumers = model.consumers
    outputs = [
        each for each in produced_operands if each in model_outputs or not inside.issuperset(consumers.get(each, ()))
    ]
    return inputs, outputs
