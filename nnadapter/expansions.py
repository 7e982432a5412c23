"""Function ops that no device takes whole, written down in the ops of their bodies.

ONNX defines many ops as functions of others. A device without a kernel for LayerNormalization may well have all that
its body needs. A node is expanded where the devices, the host's left out, take every node of its body; a part of a body
is not worth the borders around it, and ONNX Runtime has a kernel for the whole. The same reason holds for a refusal by
data type, of a node that is not valid, or by the person's word: the parts would be refused as well, or should be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import onnx

from nnadapter.converters.registry import since_version
from nnadapter.offers import Answers
from nnadapter.preparation.functions import Bodies, expand_functions
from nnadapter.preparation.prepare import Prepared, Specialised, prepare_again
from nnadapter.preparation.schema_functions import typed_body
from partition.dtypes import ELEMENT_TYPE_OF_DTYPE
from partition.graph import Graph
from partition.onnx_nodes import plain_domain
from partition.verdict import Reason, Unsupported

_WORTH_A_TRY = frozenset(
    [
        Reason.UNSUPPORTED_OPERATION,
        Reason.UNSUPPORTED_VERSION,
        Reason.UNSUPPORTED_ATTRIBUTE,
        Reason.UNSUPPORTED_RANK,
        Reason.NOT_CONSTANT,
        Reason.DEVICE_REFUSED,
    ]
)
"""Reasons after which the parts of a node may be taken."""


def bodies_to_try(
    prepared: Prepared, specialised: Specialised, answers: Answers, known: Collection[str] = ()
) -> Bodies:
    """Return the nodes that no device takes and that are functions, by name, each with its body.

    Args:
        prepared: the model.
        specialised: the same for some shapes.
        answers: per device but the hosts, its verdict on every atom of the specialised graph.
        known: names of nodes that were tried before.
    """
    graph = specialised.graph
    refused = [node for node in _refused(graph, answers) if graph.nodes[node].name not in known] if answers else []
    if not refused:
        return {}
    types = prepared.inference.types({}, prepared.constants, range(len(prepared.nodes)))
    opsets = {plain_domain(entry.domain): entry.version for entry in prepared.model.opset_import}
    found = {}
    for node in refused:
        proto = prepared.model.graph.node[specialised.positions[node]]
        domain = plain_domain(proto.domain)
        version = since_version(domain, proto.op_type, opsets.get(domain, 0))
        if version is not None:
            given = [_type(prepared, types, name) for name in proto.input]
            body = typed_body(proto, version, domain, opsets[domain], given)
            if body is not None:
                found[graph.nodes[node].name] = body
    return found


def _refused(graph: Graph, answers: Answers) -> Iterator[int]:
    """Positions of nodes that are an atom of their own and that every device refused for a reason worth a try."""
    for atom, nodes in enumerate(graph.atoms):
        verdicts = [given[atom] for given in answers]
        if len(nodes) == 1 and not any(verdicts):
            reasons = {verdict.reason for verdict in verdicts if isinstance(verdict, Unsupported)}
            if reasons & _WORTH_A_TRY and Reason.SWITCHED_OFF not in reasons:
                yield nodes[0]


def _type(prepared: Prepared, types: dict[str, onnx.ValueInfoProto], name: str) -> onnx.TypeProto:
    if name in prepared.constants:
        array = prepared.constants[name]
        element = ELEMENT_TYPE_OF_DTYPE.get(array.dtype.name, onnx.TensorProto.STRING)
        return onnx.helper.make_tensor_type_proto(element, array.shape)
    return types[name].type if name in types else onnx.TypeProto()


def expanded(prepared: Prepared, bodies: Bodies) -> Prepared | None:
    """Return the model with these nodes expanded, or None where none of them can be."""
    model, names = expand_functions(prepared.model, bodies)
    if model is prepared.model:
        return None
    origin = {node.name: node.origins[0] if node.origins else node.name for node in prepared.graph.nodes}
    return replace(prepare_again(model, [origin[name] for name in names]), given=prepared.given)


def worth_expanding(bodies: Bodies, graph: Graph, answers: Answers) -> Bodies:
    """Return those of `bodies` of which the devices take everything that is left to run.

    Args:
        bodies: what was expanded.
        graph: of the model in which all of them are.
        answers: per device but the hosts, its verdict on every atom of `graph`.
    """
    taken: dict[str, list[bool]] = {}
    for atom, nodes in enumerate(graph.atoms):
        yes = any(given[atom] for given in answers)
        for node in nodes:
            whole = _caller(graph.nodes[node].name, bodies)
            if whole is not None:
                taken.setdefault(whole, []).append(yes)
    return {name: bodies[name] for name, verdicts in taken.items() if all(verdicts)}


def _caller(name: str, bodies: Collection[str]) -> str | None:
    """The node among `bodies` in whose place the node `name` stands: nodes are called `node/inner node`."""
    parts: Sequence[str] = name.split("/")
    heads = ("/".join(parts[:size]) for size in range(len(parts) - 1, 0, -1))
    return next((head for head in heads if head in bodies), None)
