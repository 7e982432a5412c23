"""Kernel calls in ONNX models: detection of the nodes, and segments with calls.

What the kernels of a session's devices mean for one model: types of results, and which nodes are calls.

A node without a converter is a call if any device has a kernel that fits. A node with one is a call if the first device
that would compute it, in the order of preference, needs its kernel for it: it refuses what the node was converted to,
or the kernel overrides. Devices behind that one are then not asked for the node's own operations.

Calls of kernels in models of devices that take ONNX: nodes of a domain of our own, which no device is given.

Such a node has the attributes of the adapter IR's operation CUSTOM, and the types of what it reads, which models do not
have to state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnadapter.converters.custom import Answer, KernelCalls, attributes_of
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall, read_types, written_types
from nnadapter.ir.schema import AttributeValue
from nnadapter.kernels.registry import Choice, KernelTable, Request, warn_of_infer
from nnadapter.kernels.segments import Called, Constant, Segment, SegmentOperation
from nnadapter.onnx.construction import OnnxIndex, extract
from nnadapter.onnx.graphs import operand_type, read_graph
from nnadapter.onnx.model import OnnxNode, TypeRule
from nnadapter.onnx.references import array_of
from nnadapter.onnx.schemas import value_of_attribute
from nnadapter.onnx.written_nodes import WrittenNode, message_of
from partition.graph import Graph, Node, Value
from partition.verdict import Reason, Unsupported, Verdict

if TYPE_CHECKING:
    import onnx


_ONNX = "ai.onnx"


@dataclass(frozen=True, eq=False)
class DeviceCandidate:
    """One device of a session, in the order of preference."""

    table: KernelTable
    verdicts: Sequence[Verdict]
    """On every atom of the graph."""


def type_rules(
    tables: Sequence[KernelTable], offered: Iterable[tuple[str, str]] = ()
) -> Mapping[tuple[str, str], TypeRule]:
    """Return what kernels say of the results of ops, for ops that onnx knows nothing of.

    Ops of private domains have a rule in any case: where no kernel says what it makes, what the model says holds.

    Args:
        tables: of the devices, in the order of preference.
        offered: domain and op type of further ops, which devices are offered as they are.
    """
    ops = {
        (domain, op_type)
        for table in tables
        for (domain, op_type), kernels in table.by_op.items()
        if domain or any(kernel.infer for kernel in kernels)
    }
    ops.update(offered)
    answer = _answer(tables)

    def rule(node: OnnxNode, version: int, inputs: Sequence[Value | None]) -> Sequence[OperandType] | None:
        types = [None if value is None else operand_type(value) for value in inputs]
        if any(type_ is None and value is not None for type_, value in zip(types, inputs, strict=True)):
            return None
        output_types = answer(node, version, attributes_of(node), types, None)
        return None if isinstance(output_types, Unsupported) else output_types

    return dict.fromkeys(ops, rule)


def calls_of(
    tables: Sequence[KernelTable], opsets: Mapping[str, int], domains: frozenset[str] = frozenset()
) -> KernelCalls | None:
    """Return which nodes of a model may be calls; None where no device has a kernel or declares a domain.

    Args:
        tables: of the devices, in the order of preference.
        opsets: version per domain, as the model imports them.
        domains: those whose nodes devices are offered as they are.
    """
    ops = frozenset(op for table in tables for op in table.by_op)
    if not ops and not domains:
        return None
    plain = {"" if domain == _ONNX else domain: version for domain, version in opsets.items()}
    return KernelCalls(answer=_answer(tables, domains), ops=ops, domains=domains, opsets=plain)


def called_nodes(
    graph: Graph, nodes: Sequence[OnnxNode], calls: KernelCalls, device_candidates: Sequence[DeviceCandidate]
) -> frozenset[str]:
    """Return the names of the nodes with a converter that are calls.

    Nodes of an atom that some device takes as a whole stay in it.

    Args:
        graph: what is placed.
        nodes: its nodes with their attributes.
        calls: of the session, for versions.
        device_candidates: the devices but the host's, in the order of preference.
    """
    call_names = set()
    for atom, members in enumerate(graph.atoms):
        if len(members) == 1 and calls.has_kernel(nodes[members[0]]):
            node = nodes[members[0]]
            if _is_called(
                _request(graph, node, calls),
                [(device_candidate.table, device_candidate.verdicts[atom]) for device_candidate in device_candidates],
            ):
                call_names.add(node.name)
    return frozenset(call_names)


def _is_called(request: Request | None, table_verdicts: Sequence[tuple[KernelTable, Verdict]]) -> bool:
    for table, verdict in table_verdicts:
        choice = table.choose(request) if request is not None else None
        if isinstance(choice, Choice) and (not verdict or choice.kernel.overrides):
            return True
        if isinstance(choice, Unsupported):
            warn_of_infer([choice.detail])
        if verdict:
            return False
    return False


def _request(graph: Graph, node: OnnxNode, calls: KernelCalls) -> Request | None:
    inputs = [operand_type(graph.value(name)) if name else None for name in node.inputs]
    outputs = [operand_type(graph.value(name)) for name in node.outputs if name]
    if any(type_ is None and name for name, type_ in zip(node.inputs, inputs, strict=True)) or None in outputs:
        return None
    return Request(
        domain=node.domain,
        op_type=node.op_type,
        version=calls.version_of(node),
        attributes=attributes_of(node),
        inputs=_trimmed(inputs),
        outputs=tuple(type_ for type_ in outputs if type_ is not None),
    )


def _answer(tables: Sequence[KernelTable], domains: frozenset[str] = frozenset()) -> Answer:
    def answer(
        node: OnnxNode,
        version: int,
        attributes: Mapping[str, object],
        inputs: Sequence[OperandType | None],
        outputs: tuple[OperandType, ...] | None,
    ) -> tuple[OperandType, ...] | Unsupported:
        request = Request(
            domain=node.domain,
            op_type=node.op_type,
            version=version,
            attributes=attributes,
            inputs=_trimmed(inputs),
            outputs=outputs,
        )
        choices = [table.choose(request) for table in tables if (node.domain, node.op_type) in table.by_op]
        kernel_choice = next((choice for choice in choices if isinstance(choice, Choice)), None)
        if kernel_choice is not None:
            return kernel_choice.outputs
        if node.domain in domains:
            return _stated(node, outputs)
        refused = [choice for choice in choices if isinstance(choice, Unsupported)]
        if not refused:
            return _stated(node, outputs)
        return Unsupported(refused[0].reason, "; ".join(refusal.detail for refusal in refused))

    return answer


def _stated(node: OnnxNode, outputs: tuple[OperandType, ...] | None) -> tuple[OperandType, ...] | Unsupported:
    """What the model says that a node makes: nobody else knows it of an op that is offered as it is."""
    if outputs is not None:
        return outputs
    return Unsupported(
        Reason.DYNAMIC_SHAPE,
        f"the model does not state types and shapes of the outputs of {node.domain}::{node.op_type}, which devices are "
        "offered as it is; add value_info for them, or install a package with its converter",
    )


def _trimmed(inputs: Sequence[OperandType | None]) -> tuple[OperandType | None, ...]:
    """Inputs as an operation gives them: absent ones at the end say nothing."""
    last = max((position for position, type_ in enumerate(inputs) if type_ is not None), default=-1)
    return tuple(inputs[: last + 1])


CALLS = "nnadapter.kernels"
"""The domain of nodes that are calls."""
_INPUT_TYPES = "input_types"


def has_calls(model: onnx.ModelProto) -> bool:
    """Whether kernels compute nodes of a model."""
    return any(node.domain == CALLS for node in model.graph.node)


def call_node(
    node: onnx.NodeProto, name: str, attributes: Mapping[str, AttributeValue], types: Sequence[OperandType]
) -> onnx.NodeProto:
    """Return the call that takes the place of a node.

    Args:
        node: as the model has it.
        name: of the node.
        attributes: of the operation CUSTOM that it is.
        types: of the inputs that are present.
    """
    call = CustomCall.of(attributes)
    output_names = [*node.output, *[""] * (len(call.outputs) - len(node.output))]
    return message_of(
        WrittenNode(
            op_type=CUSTOM,
            domain=CALLS,
            name=name,
            inputs=tuple(node.input[position] for position in call.present),
            outputs=tuple(output_name or f"{name}%{position}" for position, output_name in enumerate(output_names)),
            attributes={**attributes, _INPUT_TYPES: written_types(types)},
        )
    )


def onnx_segment(model: onnx.ModelProto) -> Segment:
    """A segment as ONNX, with calls in it."""
    graph, index = read_graph(model), OnnxIndex.of(model)
    call_inputs = {name for node in model.graph.node if node.domain == CALLS for name in node.input}

    def part(positions: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
        read = dict.fromkeys(name for at in positions for name in graph.nodes[at].reads if name in graph.constants)
        return extract(index, graph, positions, inputs, list(read), outputs)

    return Segment(
        tuple(_read(*pair, graph.constants) for pair in zip(model.graph.node, graph.nodes, strict=True)),
        graph.inputs,
        graph.outputs,
        {name: _constant(index.initializers[name]) for name in sorted(call_inputs & graph.constants)},
        part,
        lambda name: operand_type(graph.value(name)),
    )


def _read(proto: onnx.NodeProto, node: Node, constants: frozenset[str]) -> SegmentOperation:
    called = None
    if proto.domain == CALLS:
        attributes = {attribute.name: value_of_attribute(attribute) for attribute in proto.attribute}
        types = read_types(str(attributes.pop(_INPUT_TYPES)))
        called = Called(CustomCall.of(attributes), tuple(proto.input), types)  # type: ignore[arg-type]
    reads = tuple(name for name in node.reads if name not in constants)
    return SegmentOperation(node.op_type, reads, tuple(name for name in node.outputs if name), called)


def _constant(tensor: onnx.TensorProto) -> Constant:
    array = array_of(tensor)
    return Constant(OperandType(DataType(array.dtype.name), array.shape), array)
