"""What a device would run as one if it took more than it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnadapter.costs.fusion import Fusion, Groups
from nnadapter.offering.atoms import commonly_fused_groups, with_atoms
from nnadapter.offering.conversions import converted
from nnadapter.onnx.preparation.prepare import Specialized
from nnadapter.whatif.features import Missing
from partition.graph import Graph
from partition.verdict import Verdict


def groups_if_supported(
    specialized: Specialized, missing: Missing, verdicts: Sequence[Verdict], fusion: Fusion
) -> Groups:
    """Atoms of the graph that would be one if the device lacked nothing.

    1. What is recognized where nothing is apart.
    2. Of a device that fuses anything, products with their activations; but not where it does otherwise today: where it
       takes all of such a group, and does not run it as one, it is taken to do so with no group of the same ops.

    Args:
        specialized: the graph with its atoms.
        missing: what the device lacks for it.
        verdicts: the device's, on every atom.
        fusion: what it fuses today.
    """
    if not missing.examples:
        return ()
    graph = specialized.graph
    plain = replace(specialized, graph=replace(graph, atoms=()))
    conversion = converted(plain)
    atoms = with_atoms(plain, conversion)[0].graph.atoms
    of_atoms = [_atoms_of(graph, nodes) for nodes in atoms if len(nodes) > 1]
    if fusion.groups:
        home = {node: number for number, group in enumerate(fusion.groups) for node in group}
        products = {nodes: _atoms_of(graph, nodes) for nodes in commonly_fused_groups(conversion)}
        unfused_op_types = {
            _op_types(graph, nodes)
            for nodes, product_atoms in products.items()
            if all(verdicts[atom] for atom in product_atoms) and len({home.get(node, ~node) for node in nodes}) > 1
        }
        of_atoms += [
            product_atoms
            for nodes, product_atoms in products.items()
            if _op_types(graph, nodes) not in unfused_op_types
        ]
    lacking = (group for group in of_atoms if len(group) > 1 and any(missing.needs[atom] for atom in group))
    return tuple(dict.fromkeys(lacking))


def _atoms_of(graph: Graph, nodes: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(graph.atom_of[node] for node in nodes))


def _op_types(graph: Graph, nodes: Sequence[int]) -> tuple[str, ...]:
    return tuple(graph.nodes[node].op_type for node in nodes)
