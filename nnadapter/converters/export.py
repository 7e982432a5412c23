"""Export of an IR model to ONNX.

1. Operand names are kept; nodes are named for their origin.
2. Fused activations become nodes; channels-last images are transposed around operations.
3. Outputs that no node produces, or that repeat, are copied.
4. Dynamic dimensions are named; attributes that depend on them are refused.
5. Weights are references; keep the IR model alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nnadapter.converters.elementwise import FUSED
from nnadapter.converters.quantization import dequantized, export_sums, on_reals, quantized, sums
from nnadapter.converters.registry import Exporter, exporters
from nnadapter.converters.writer import GraphWriter, NodeWriter
from nnadapter.errors import InvalidModelError
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import Array, DataType, Layout, Operand, OperandType
from nnadapter.ir.operations.windows import IMAGES
from nnadapter.ir.symbolic_numbers import SymbolicNumber
from nnadapter.onnx.construction import WrittenNode, written_model
from nnadapter.onnx.schemas import Refusal
from nnadapter.records import dataclass, replace
from partition.graph import Reason, Unsupported, Value

if TYPE_CHECKING:
    import onnx

_TO_CHANNELS_FIRST, _TO_CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Export:
    """Exported model, with each operation's outcome."""

    model: onnx.ModelProto
    """ONNX model; results of refused operations are its inputs."""
    nodes: tuple[range, ...]
    """Node positions per operation."""
    refusals: Mapping[int, Unsupported]


def to_onnx(model: Model) -> onnx.ModelProto:
    """Export a model to ONNX.

    Raises:
        InvalidModelError: an operation cannot be expressed in ONNX.
    """
    exported = export_model(model)
    if exported.refusals:
        position, refusal = next(iter(exported.refusals.items()))
        operation = model.operations[position]
        result_names = ", ".join(repr(model.operands[index].name) for index in operation.outputs)
        more = f", and {len(exported.refusals) - 1} more" if len(exported.refusals) > 1 else ""
        raise InvalidModelError(
            f"operation {position} {operation.type} ({result_names}) cannot be written as ONNX: "
            f"{refusal.detail}{more}; keep the model in its own format, or build it from other operations"
        )
    return exported.model


def export_model(model: Model) -> Export:
    """Export a model to ONNX. Results of operations that ONNX cannot express become inputs."""
    return _ModelExport(model).run()


class _ModelExport:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._graph = GraphWriter()
        self._names = [self._graph.unique(operand.name) for operand in model.operands]
        self._graph.dtypes.update(
            (name, operand.type.dtype) for name, operand in zip(self._names, model.operands, strict=True)
        )
        self._holes: list[int] = []

    def run(self) -> Export:
        model, nodes, refusals = self._model, [], {}
        for position, operation in enumerate(model.operations):
            first = len(self._graph.nodes)
            opsets = dict(self._graph.opsets)
            try:
                self._operation(operation, first)
            except Refusal as refusal:
                del self._graph.nodes[first:]
                self._graph.opsets = opsets
                refusals[position] = refusal.verdict
                self._holes += operation.outputs
            nodes.append(range(first, len(self._graph.nodes)))
        outputs = self._outputs()
        read = {name for node in self._graph.nodes for name in node.inputs}
        inputs = [*model.inputs, *self._holes]
        between = set(range(len(model.operands))) - {*inputs, *model.outputs}
        exported_model = written_model(
            self._graph.nodes,
            map(self._value, inputs),
            outputs,
            (self._value(index) for index in sorted(between) if model.operands[index].value is None),
            self._weights(read),
            {name: value for name, value in self._graph.constants.items() if name in read},
            self._graph.opsets,
        )
        return Export(model=exported_model, nodes=tuple(nodes), refusals=refusals)

    def _weights(self, read: set[str]) -> dict[str, Array]:
        pairs = zip(self._names, self._model.operands, strict=True)
        return {name: operand.value for name, operand in pairs if operand.value is not None and name in read}

    def _value(self, index: int) -> Value:
        return self._value_called(self._names[index], self._model.operands[index])

    def _value_called(self, name: str, operand: Operand) -> Value:
        sizes = tuple(map(_dimension, operand.type.dimensions))
        return Value(name, operand.type.dtype.value, sizes, int(operand.type.dtype.array_type.itemsize))

    def _outputs(self) -> list[Value]:
        outputs, listed = [], set()
        produced = {index for operation in self._model.operations for index in operation.outputs} - set(self._holes)
        for index in self._model.outputs:
            name = self._names[index]
            if index not in produced or index in listed:
                copy = self._graph.unique(name)
                self._graph.nodes.append(
                    WrittenNode(op_type="Identity", inputs=(name,), outputs=(copy,), name=self._graph.unique_node(copy))
                )
                name = copy
            listed.add(index)
            outputs.append(self._value_called(name, self._model.operands[index]))
        return outputs

    def _operation(self, operation: Operation, first: int) -> None:
        named = NamedOperation(self._model, operation)
        inputs = ["" if index == ABSENT else self._names[index] for index in named.positions]
        types = [None if operand is None else operand.type for operand in named.inputs]
        write = NodeWriter(self._graph, named, inputs, types)
        results = self._written(write, _channels_last(operation, write))
        result_names = [self._names[index] for index in operation.outputs]
        self._name(first, [*results], result_names, operation)

    def _written(self, write: NodeWriter, channels_last: bool) -> list[str]:
        if channels_last:
            write = _with_channels_first(write)
        real = on_reals(write)
        if real:
            write = _with_reals(write)
        integer = sums(write)
        written = export_sums(write) if integer else _exporter(write.operation.type)(write)
        results = [written] if isinstance(written, str) else list(written)
        fuse_code = str(write.operation.attributes.get("fuse_code", "none"))
        if fuse_code != "none" and not integer:
            results = [FUSED[fuse_code](write, result, *write.operation.fuse_parameters) for result in results]
        if real:
            results = [quantized(write, result, write.result.type) for result in results]
        if channels_last:
            results = [write.node("Transpose", result, perm=_TO_CHANNELS_LAST) for result in results]
        return results

    def _name(self, first: int, results: list[str], target_names: Sequence[str], operation: Operation) -> None:
        nodes = self._graph.nodes
        produced_names = {name for node in nodes[first:] for name in node.outputs}
        renamed: dict[str, str] = {}
        for result, name in zip(results, target_names, strict=True):
            if result in produced_names and result not in renamed:
                renamed[result] = name
            else:
                nodes.append(WrittenNode(op_type="Identity", inputs=(result,), outputs=(name,)))
        origin = operation.origins[0] if operation.origins else target_names[0]
        for position in range(first, len(nodes)):
            node = nodes[position]
            nodes[position] = replace(
                node,
                inputs=tuple(renamed.get(name, name) for name in node.inputs),
                outputs=tuple(renamed.get(name, name) for name in node.outputs),
                name=self._graph.unique_node(origin),
            )


def _exporter(type_: str) -> Exporter:
    exporter = exporters().get(type_)
    if exporter is None:
        raise Refusal(Reason.UNSUPPORTED_OPERATION, f"no exporter writes {type_} as ONNX")
    return exporter


def _channels_last(operation: Operation, write: NodeWriter) -> bool:
    return operation.type in IMAGES and write.type.layout is Layout.NHWC


def _with_channels_first(write: NodeWriter) -> NodeWriter:
    first = write.type
    dimensions = tuple(first.dimensions[axis] for axis in _TO_CHANNELS_FIRST)
    if first.quantization is not None and first.quantization.axis is not None:
        raise Refusal(
            Reason.UNSUPPORTED_TYPE,
            "a channels-last image is quantized along an axis; expected one scale for the entire image",
        )
    turned = write.node("Transpose", write.inputs[0], perm=_TO_CHANNELS_FIRST)
    type_ = OperandType(first.dtype, dimensions, Layout.NCHW, first.quantization)
    return write.reading((turned, *write.inputs[1:]), (type_, *write.types[1:]))


def _with_reals(write: NodeWriter) -> NodeWriter:
    pairs = zip(write.inputs, write.types, strict=True)
    names = [name if type_ is None else dequantized(write, name, type_) for name, type_ in pairs]
    types = [None if type_ is None else OperandType(DataType.FLOAT32, type_.dimensions) for type_ in write.types]
    return write.reading(names, types)


def _dimension(size: object) -> int | str:
    return f"size_{size.number}" if isinstance(size, SymbolicNumber) else int(size)  # type: ignore[call-overload]
