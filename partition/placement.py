"""Placement: which device does take each atom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partition.graph import Graph, GraphError
from partition.verdict import Verdict

_NAMED = 5
"""How many nodes an error message names before it only counts them."""


def place_by_priority(
    graph: Graph, devices: Sequence[str], verdicts: Mapping[str, Sequence[Verdict]]
) -> tuple[str, ...]:
    """Return, for every atom, the first of `devices` whose verdict is yes.

    Args:
        graph: the graph whose atoms are placed.
        devices: labels in order of preference; the last one normally takes everything.
        verdicts: per device, its verdict on every atom, in the order of `graph.atoms`.

    Raises:
        GraphError: no device takes some atom, or a device has not judged every atom.
    """
    for device in devices:
        verdict_count = len(verdicts.get(device, ()))
        if verdict_count != len(graph.atoms):
            raise GraphError(
                f"device {device!r} gave {verdict_count} verdicts for {len(graph.atoms)} atoms; every atom needs one"
            )
    placed = [next((device for device in devices if verdicts[device][atom]), None) for atom in range(len(graph.atoms))]
    check_all_placeable(graph, devices, [atom for atom, device in enumerate(placed) if device is None])
    return tuple(device for device in placed if device is not None)


def check_all_placeable(graph: Graph, devices: Sequence[str], atoms: Sequence[int]) -> None:
    """Do nothing if there are no atoms that none of `devices` takes.

    Raises:
        GraphError: there are; the message names the nodes of some of them.
    """
    if not atoms:
        return
    nodes = [graph.nodes[node] for atom in atoms for node in graph.atoms[atom]]
    named = ", ".join(f"{node.name!r} ({node.op_type})" for node in nodes[:_NAMED])
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    raise GraphError(
        f"none of the devices {list(devices)} takes {named}{more}; end the list with a device that takes everything"
    )
