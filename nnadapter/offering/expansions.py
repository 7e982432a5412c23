"""Function ops that no device takes whole, written down in the ops of their bodies.

ONNX defines many ops as functions of others. A device without a kernel for LayerNormalization may well have all that
its body needs. A node is expanded where the devices, the host's left out, take every node of its body; a part of a body
is not worth the borders around it, and ONNX Runtime has a kernel for the whole. The same reason holds for a refusal by
data type, of a node that is not valid, or by the person's word: the parts would be refused as well, or should be.

Where nobody has a kernel for the whole, not the host either, the body is all that there is: it is enough that somebody
takes each node, the host or another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from nnadapter.offering.atoms import Answers
from nnadapter.onnx.inlining import Bodies
from nnadapter.onnx.preparation.device_forms import function_body
from nnadapter.onnx.preparation.prepare import Prepared, Specialized
from partition.graph import Graph
from partition.verdict import Reason, Unsupported, Verdict

_WORTH_A_TRY = frozenset(
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
"""Reasons after which the parts of a node may be taken."""
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
"""Reasons that hold whatever the shapes. An attribute may be refused for some sizes alone."""
TAKEN_TO_LAST = AT_ALL_SHAPES | {
    Reason.RULE,
    Reason.DATA_DEPENDENT_SHAPE,
    Reason.DYNAMIC_SHAPE,
    Reason.UNSUPPORTED_RANK,
}
"""What nobody knows of sizes at some shapes of inputs is taken as unknown at all."""


def bodies_to_try(
    prepared: Prepared, specialized: Specialized, answers: Answers, known: Collection[str] = ()
) -> Bodies:
    """Return the nodes that no device takes and that are functions, by name, each with its body.

    Args:
        prepared: the model.
        specialized: the same for some shapes.
        answers: per device but the hosts, its verdict on every atom of the specialized graph; of hosts where there is
            no other device.
        known: names of nodes that were tried before.
    """
    graph = specialized.graph
    refused = [node for node in _refused(graph, answers) if graph.nodes[node].name not in known] if answers else []
    bodies = {graph.nodes[node].name: function_body(prepared, specialized.positions[node]) for node in refused}
    return {name: body for name, body in bodies.items() if body is not None}


def _refused(graph: Graph, answers: Answers) -> Iterator[int]:
    """Positions of nodes that are an atom of their own and that every device refused for a reason worth a try."""
    for atom, nodes in enumerate(graph.atoms):
        verdicts = [device_verdicts[atom] for device_verdicts in answers]
        if len(nodes) == 1 and not any(verdicts):
            reasons = {verdict.reason for verdict in verdicts if isinstance(verdict, Unsupported)}
            if reasons & _WORTH_A_TRY and Reason.SWITCHED_OFF not in reasons:
                yield nodes[0]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What came of expanding some nodes."""

    worth: Bodies
    """Those of which the devices take everything that is left to run."""
    hopeless: frozenset[str]
    """Names of those that stay as they are, or of which a part is refused, whatever the shapes."""
    lasting: frozenset[str]
    """Names of these, and of those of which a part is refused for reasons that are taken to last."""


def trial_of(
    bodies: Bodies,
    wholes: Sequence[str],
    graph: Graph,
    answers: Answers,
    homeless: Collection[str] = (),
    of_all: Answers = (),
) -> Trial:
    """Return what came of it.

    Args:
        bodies: what was to be expanded.
        wholes: for every node of `graph`, the node that it was before, or in whose place it stands.
        graph: of the model in which all of them are that can be.
        answers: per device but the hosts, its verdict on every atom of `graph`.
        homeless: see `unplaceable_nodes`.
        of_all: as `answers`, of all devices.
    """
    taken: dict[str, bool] = {}
    hopeless, lasting = set[str](), set[str]()
    for atom, nodes in enumerate(graph.atoms):
        own = [device_verdicts[atom] for device_verdicts in answers]
        every = [device_verdicts[atom] for device_verdicts in of_all]
        for node in nodes:
            whole = wholes[node]
            if whole in bodies:
                verdicts = every if whole in homeless else own
                taken[whole] = taken.get(whole, True) and any(verdicts)
                if graph.nodes[node].name == whole or _for_good(verdicts):
                    hopeless.add(whole)
                elif _for_good(verdicts, TAKEN_TO_LAST):
                    lasting.add(whole)
    worth = {name: bodies[name] for name, yes in taken.items() if yes}
    return Trial(worth, frozenset(hopeless), frozenset(hopeless | lasting))


def unplaceable_nodes(graph: Graph, of_all: Answers) -> frozenset[str]:
    """Return the names of the nodes that no device takes, the hosts among them."""
    atoms = (nodes for atom, nodes in enumerate(graph.atoms) if not any(verdicts[atom] for verdicts in of_all))
    return frozenset(graph.nodes[node].name for nodes in atoms for node in nodes)


def refused_for_good(graph: Graph, answers: Answers) -> set[str]:
    """The names of the nodes that every device refuses whatever the shapes."""
    return {
        graph.nodes[node].name
        for atom, nodes in enumerate(graph.atoms)
        if _for_good([device_verdicts[atom] for device_verdicts in answers])
        for node in nodes
    }


def _for_good(verdicts: Sequence[Verdict], reasons: Collection[Reason] = AT_ALL_SHAPES) -> bool:
    return all(isinstance(verdict, Unsupported) and verdict.reason in reasons for verdict in verdicts)
