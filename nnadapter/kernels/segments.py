"""Segments with kernel calls: detection, splitting into driver programs, and serialization."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from nnadapter.converters.custom import Answer, KernelCalls, attributes_of
from nnadapter.drivers.envelope import ADVICE, Envelope
from nnadapter.drivers.interface import SegmentModel
from nnadapter.errors import IncompatibleProgramError, InvalidModelError, ModelFileError
from nnadapter.ir.model import ABSENT, Model, Operation, submodel
from nnadapter.ir.operand import Array, DataType, Lifetime, Operand, OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall, read_types, written_types
from nnadapter.ir.schema import AttributeValue
from nnadapter.kernels.registry import Choice, KernelTable, Request, warn_of_infer
from nnadapter.onnx.construction import OnnxIndex, WrittenNode, extract, message_of
from nnadapter.onnx.graphs import operand_type, read_graph
from nnadapter.onnx.model import OnnxNode, TypeRule
from nnadapter.onnx.references import array_of
from nnadapter.onnx.schemas import value_of_attribute
from nnadapter.records import dataclass
from partition.graph import Graph, Node, Reason, Unsupported, Value, Verdict

if TYPE_CHECKING:
    import onnx


Part = Callable[[Sequence[int], Sequence[str], Sequence[str]], SegmentModel]
"""Operations, input names, output names -> submodel."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Constant that a kernel reads."""

    type: OperandType
    value: Array


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """Kernel call of a segment."""

    call: CustomCall
    inputs: tuple[str, ...]
    types: tuple[OperandType, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentOperation:
    """Operation or ONNX node of a segment."""

    type: str
    reads: tuple[str, ...]
    """Input names, without constants."""
    makes: tuple[str, ...]
    called: Called | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """Model that calls kernels."""

    operations: tuple[SegmentOperation, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Constant]
    """Constants that kernels read or that are outputs."""
    part: Part
    type_of: Callable[[str], OperandType | None]
    """Returns the type of a value by name; None if unknown before the run."""

    @cached_property
    def calls(self) -> tuple[int, ...]:
        return tuple(at for at, operation in enumerate(self.operations) if operation.called is not None)


def ir_segment(model: Model, is_call: Callable[[Operation, Sequence[OperandType]], bool]) -> Segment:
    """Return an adapter IR model as a segment. `is_call` selects CUSTOM operations for kernels."""
    operands = model.operands
    numbers = {operand.name: number for number, operand in enumerate(operands)}

    def names(chosen: Iterable[int]) -> tuple[str, ...]:
        return tuple(operands[operand].name for operand in chosen if operand != ABSENT)

    def part(positions: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]) -> Model:
        return submodel(model, positions, [numbers[name] for name in inputs], [numbers[name] for name in outputs])

    def read(operation: Operation) -> SegmentOperation:
        called = None
        types = tuple(operands[operand].type for operand in operation.inputs if operand != ABSENT)
        if operation.type == CUSTOM and is_call(operation, types):
            called = Called(CustomCall.of(operation.attributes), names(operation.inputs), types)
        computed = (number for number in operation.inputs if number != ABSENT and operands[number].value is None)
        return SegmentOperation(operation.type, names(computed), names(operation.outputs), called)

    operations = tuple(map(read, model.operations))
    needed_names = {name for operation in operations if operation.called for name in operation.called.inputs}
    needed_names.update(names(model.outputs))
    constants = {
        operand.name: Constant(operand.type, operand.value)
        for operand in operands
        if operand.value is not None and operand.name in needed_names
    }
    inputs, outputs = names(model.inputs), names(model.outputs)
    return Segment(operations, inputs, outputs, constants, part, lambda name: operands[numbers[name]].type)


@dataclass(frozen=True, slots=True, eq=False)
class KernelPiece:
    """Part of a segment that runs in one step: a submodel for the driver, or a kernel call."""

    operations: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: SegmentModel | None


def split(segment: Segment) -> tuple[KernelPiece, ...]:
    """Split a segment into pieces, in execution order."""
    levels = _levels(segment)
    read = _read_outside(segment, levels)
    by_level: dict[int, list[int]] = {}
    for position, level in enumerate(levels):
        by_level.setdefault(level, []).append(position)
    return tuple(piece for level in sorted(by_level) for piece in _pieces(segment, by_level[level], read))


def without_calls(segment: Segment) -> tuple[SegmentModel, list[int]]:
    """Return the submodel without kernel calls, and the positions of its operations in the segment."""
    operations = segment.operations
    positions = [position for position, operation in enumerate(operations) if operation.called is None]
    produced_names = {name for position in positions for name in operations[position].makes}
    required_names = [*segment.outputs, *(name for position in segment.calls for name in operations[position].reads)]
    outputs = [name for name in dict.fromkeys(required_names) if name in produced_names]
    return segment.part(positions, _inputs_of(segment, positions, produced_names), outputs), positions


def _levels(segment: Segment) -> list[int]:
    """Return the level of each operation. The driver runs even levels; operations of odd levels are kernel calls."""
    of_value: dict[str, int] = {}
    levels = []
    for operation in segment.operations:
        level = max((of_value[name] for name in operation.reads if name in of_value), default=0)
        if operation.called is not None:
            level += level % 2 == 0
        else:
            level += level % 2
        levels.append(level)
        of_value.update((name, level) for name in operation.makes)
    return levels


def _read_outside(segment: Segment, levels: Sequence[int]) -> set[str]:
    """Return the outputs, the values that cross levels, and all values that kernels read."""
    producer_levels = {name: levels[at] for at, operation in enumerate(segment.operations) for name in operation.makes}
    boundary_values = set(segment.outputs)
    for at, operation in enumerate(segment.operations):
        is_call_level = levels[at] % 2 == 1
        boundary_values.update(
            name for name in operation.reads if is_call_level or producer_levels.get(name) != levels[at]
        )
    return boundary_values


def _pieces(segment: Segment, positions: list[int], read: set[str]) -> Iterator[KernelPiece]:
    operations = [segment.operations[position] for position in positions]
    if operations[0].called is None:
        produced_names = dict.fromkeys(name for operation in operations for name in operation.makes)
        inputs = _inputs_of(segment, positions, produced_names.keys())
        outputs = tuple(name for name in produced_names if name in read)
        yield KernelPiece(tuple(positions), inputs, outputs, segment.part(positions, inputs, outputs))
        return
    # Calls may depend on calls of the same level, so keep the model's order.
    for position, operation in zip(positions, operations, strict=True):
        assert operation.called is not None, "a level is of one kind"
        yield KernelPiece((position,), operation.called.inputs, operation.makes, None)


def _inputs_of(segment: Segment, positions: Sequence[int], produced_names: Set[str]) -> tuple[str, ...]:
    read = (name for position in positions for name in segment.operations[position].reads)
    return tuple(name for name in dict.fromkeys(read) if name not in produced_names)


MAGIC = b"NNAKERN\0"
_ENVELOPE = Envelope(magic=MAGIC, version=1)


@dataclass(frozen=True, eq=False)
class StoredPiece:
    """Serialized signature of a driver program."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[OperandType | None, ...]
    """Types of outputs; None if unknown before the run."""


@dataclass(frozen=True, eq=False)
class StoredKernelProgram:
    """Serialized structure of a kernel program; the driver's programs are separate."""

    calls: Model
    """Model of the kernel calls. Its inputs include outputs of driver programs."""
    pieces: tuple[StoredPiece, ...]
    order: tuple[int, ...]
    """Execution order: index of a piece, or -1 for the next kernel call."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def calls_model(segment: Segment) -> Model:
    """Return a model with only the kernel calls, and the constants that are outputs."""
    called = [segment.operations[position] for position in segment.calls]
    operands: dict[str, Operand] = {
        name: Operand(name, constant.type, Lifetime.CONSTANT, constant.value)
        for name, constant in segment.constants.items()
    }
    produced_names = [name for operation in called for name in operation.makes]
    for operation in called:
        assert operation.called is not None, "it is a call"
        results = zip(operation.makes, operation.called.call.outputs, strict=True)
        operands.update((name, Operand(name, type_, Lifetime.MODEL_OUTPUT)) for name, type_ in results)
    for operation in called:
        assert operation.called is not None, "it is a call"
        for name, type_ in zip(operation.called.inputs, operation.called.types, strict=True):
            operands.setdefault(name, Operand(name, type_, Lifetime.MODEL_INPUT))
    numbers = {name: number for number, name in enumerate(operands)}
    passthrough_names = [name for name in dict.fromkeys(segment.outputs) if name in segment.constants]
    return Model(
        tuple(operands.values()),
        tuple(_operation(call, numbers) for call in called),
        tuple(numbers[name] for name, operand in operands.items() if operand.lifetime is Lifetime.MODEL_INPUT),
        tuple(numbers[name] for name in dict.fromkeys((*produced_names, *passthrough_names))),
    )


def _operation(operation: SegmentOperation, numbers: Mapping[str, int]) -> Operation:
    assert operation.called is not None, "it is a call"
    inputs, outputs = (tuple(numbers[name] for name in side) for side in (operation.called.inputs, operation.makes))
    return Operation(CUSTOM, inputs, outputs, operation.called.call.to_attributes())


def write(stored: StoredKernelProgram, blobs: Sequence[bytes]) -> bytes:
    """Serialize a program; `blobs` are the driver's programs."""
    from nnadapter.ir.protobuf.serialization import to_bytes

    calls, weights = to_bytes(stored.calls)
    parts = [calls, weights, *blobs]
    header = {
        "lengths": list(map(len, parts)),
        "pieces": [
            {
                "inputs": piece.inputs,
                "outputs": piece.outputs,
                "types": [type_ and _type(type_) for type_ in piece.types],
            }
            for piece in stored.pieces
        ],
        "order": stored.order,
        "inputs": stored.inputs,
        "outputs": stored.outputs,
    }
    return _ENVELOPE.close(json.dumps(header, separators=(",", ":")).encode(), parts)


def read(blob: bytes) -> tuple[StoredKernelProgram, list[bytes]]:
    """Deserialize a stored program and the driver's serialized programs. Raises IncompatibleProgramError."""
    from nnadapter.ir.protobuf.serialization import from_bytes

    header, contents = _ENVELOPE.open(blob)
    try:
        fields = json.loads(header)
        parts = _parts(contents, fields["lengths"])
        pieces = tuple(
            StoredPiece(tuple(piece["inputs"]), tuple(piece["outputs"]), tuple(map(_read_type, piece["types"])))
            for piece in fields["pieces"]
        )
        calls = from_bytes(parts[0], {"weights": parts[1]})
        stored = StoredKernelProgram(
            calls, pieces, tuple(fields["order"]), tuple(fields["inputs"]), tuple(fields["outputs"])
        )
        _check(stored, len(parts) - 2)
    except (ValueError, KeyError, TypeError, IndexError, InvalidModelError, ModelFileError) as error:
        text = f"the stored program of a segment with kernels is inconsistent: {error}; {ADVICE}"
        raise IncompatibleProgramError(text) from error
    return stored, parts[2:]


def _check(stored: StoredKernelProgram, blobs: int) -> None:
    programs = [number for number in stored.order if number != -1]
    if programs != list(range(len(stored.pieces))) or blobs != len(programs):
        raise ValueError(f"there are {blobs} programs for {len(stored.pieces)} pieces, run in the order {programs}")
    if stored.order.count(-1) != len(stored.calls.operations):
        raise ValueError(
            f"{len(stored.calls.operations)} kernel calls are stored, but {stored.order.count(-1)} are in the order"
        )


def _parts(contents: memoryview, lengths: Sequence[int]) -> list[bytes]:
    if sum(lengths) != len(contents) or any(length < 0 for length in lengths):
        raise ValueError(f"the parts have {list(lengths)} bytes, expected lengths with the sum {len(contents)}")
    return [bytes(contents[end - length : end]) for end, length in zip(accumulate(lengths), lengths, strict=True)]


def _type(type_: OperandType) -> list[object]:
    return [type_.dtype.value, list(type_.dimensions)]


def _read_type(fields: Sequence[object] | None) -> OperandType | None:
    if fields is None:
        return None
    dtype, dimensions = fields
    return OperandType(DataType(str(dtype)), tuple(map(int, dimensions)))  # type: ignore[call-overload]


_ONNX = "ai.onnx"


@dataclass(frozen=True, eq=False)
class DeviceCandidate:
    """Device with its kernels and its verdict on each atom."""

    table: KernelTable
    verdicts: Sequence[Verdict]


def type_rules(
    tables: Sequence[KernelTable], offered: Iterable[tuple[str, str]] = ()
) -> Mapping[tuple[str, str], TypeRule]:
    """Return type rules of kernels, for ops that onnx cannot infer.

    If no rule applies, ops of custom domains and ops in `offered` have the types in the model.
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
    """Return a test for nodes that kernels compute or devices take unconverted; None if no node can pass."""
    ops = frozenset(op for table in tables for op in table.by_op)
    if not ops and not domains:
        return None
    plain = {"" if domain == _ONNX else domain: version for domain, version in opsets.items()}
    return KernelCalls(answer=_answer(tables, domains), ops=ops, domains=domains, opsets=plain)


def called_nodes(
    graph: Graph, nodes: Sequence[OnnxNode], calls: KernelCalls, device_candidates: Sequence[DeviceCandidate]
) -> frozenset[str]:
    """Return the names of nodes that kernels compute.

    Such a node is refused by all devices earlier in the user's order, and by the kernel's device unless the kernel has
    `overrides`.
    """
    single_nodes = ((atom, nodes[members[0]]) for atom, members in enumerate(graph.atoms) if len(members) == 1)
    return frozenset(
        node.name
        for atom, node in single_nodes
        if calls.has_kernel(node) and _is_called(_request(graph, node, calls), device_candidates, atom)
    )


def _is_called(request: Request | None, device_candidates: Sequence[DeviceCandidate], atom: int) -> bool:
    for candidate in device_candidates:
        verdict = candidate.verdicts[atom]
        choice = candidate.table.choose(request) if request is not None else None
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
        for choice in choices:
            if isinstance(choice, Choice):
                return choice.outputs
        refused = [choice for choice in choices if isinstance(choice, Unsupported)]
        if node.domain in domains or not refused:
            return _stated(node, outputs)
        return Unsupported(refused[0].reason, "; ".join(refusal.detail for refusal in refused))

    return answer


def _stated(node: OnnxNode, outputs: tuple[OperandType, ...] | None) -> tuple[OperandType, ...] | Unsupported:
    if outputs is not None:
        return outputs
    return Unsupported(
        Reason.DYNAMIC_SHAPE,
        f"the model does not state types and shapes of the outputs of {node.domain}::{node.op_type}, which devices "
        "accept unconverted; add value_info for them, or install a package with its converter",
    )


def _trimmed(inputs: Sequence[OperandType | None]) -> tuple[OperandType | None, ...]:
    last = max((position for position, type_ in enumerate(inputs) if type_ is not None), default=-1)
    return tuple(inputs[: last + 1])


CALLS = "nnadapter.kernels"
_INPUT_TYPES = "input_types"


def has_calls(model: onnx.ModelProto) -> bool:
    """Return True if a model calls kernels."""
    return any(node.domain == CALLS for node in model.graph.node)


def call_node(
    node: onnx.NodeProto, name: str, attributes: Mapping[str, AttributeValue], types: Sequence[OperandType]
) -> onnx.NodeProto:
    """Return the kernel call that replaces a node, with the types of its present inputs."""
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
    """Return an ONNX model as a segment."""
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
