"""Writers of ONNX graphs and nodes for exporters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import Array, DataType, Operand, OperandType, freeze
from nnadapter.ir.symbolic_numbers import is_symbolic
from nnadapter.onnx.construction import WrittenNode, first_opset, opset_of_version, result_types, type_text, types_of
from nnadapter.onnx.schemas import Refusal
from nnadapter.records import dataclass, field, replace
from partition.graph import Reason

_Number = TypeVar("_Number", int, float)
_Value = TypeVar("_Value")
OLDEST_OPSET = 24
"""Default opset of exports, fully supported by ONNX Runtime. Some op versions, such as QuantizeLinear-28, are newer."""


@dataclass(eq=False)
class GraphWriter:
    """ONNX graph under construction: nodes, constants, opsets and data types."""

    nodes: list[WrittenNode] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=lambda: {"": OLDEST_OPSET})
    dtypes: dict[str, DataType] = field(default_factory=dict)
    _reserved: set[str] = field(default_factory=set)
    _reserved_nodes: set[str] = field(default_factory=set)
    _numbers: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    _count: int = 0

    def unique(self, name: str) -> str:
        return self._unique(name or "value", self._reserved)

    def unique_node(self, name: str) -> str:
        return self._unique(name or "node", self._reserved_nodes)

    def _unique(self, name: str, reserved: set[str]) -> str:
        candidate = name
        while candidate in reserved:
            self._count += 1
            candidate = f"{name}/{self._count}"
        reserved.add(candidate)
        return candidate

    def constant(self, name: str, value: Array) -> str:
        """Return a small constant's name; add the constant unless an equal one exists."""
        key = (value.dtype.name, value.shape, value.tobytes())
        constant_name = self._numbers.get(key)
        if constant_name is None:
            constant_name = self._numbers[key] = self.unique(name)
            self.constants[constant_name] = freeze(value)
            self.dtypes[constant_name] = DataType(value.dtype.name)
        return constant_name


class NodeWriter:
    """Writer of the nodes of one operation; an absent input's name is empty."""

    def __init__(
        self,
        graph: GraphWriter,
        operation: NamedOperation,
        inputs: Sequence[str],
        types: Sequence[OperandType | None],
    ) -> None:
        self._graph = graph
        self.operation = operation
        self.inputs = tuple(inputs)
        self.types = tuple(types)
        """Input types. Channels-last images were transposed to `[N, C, H, W]`."""

    def reading(self, inputs: Sequence[str], types: Sequence[OperandType | None]) -> NodeWriter:
        return NodeWriter(self._graph, self.operation, inputs, types)

    @property
    def type(self) -> OperandType:
        first = self.types[0]
        assert first is not None, "no operation has an optional first input"
        return first

    @property
    def result(self) -> Operand:
        return self.operation.output

    def node(self, op_type: str, *inputs: str, opset: int = 0, **attributes: object) -> str:
        """Write a node with one output, and return its name.

        It needs at least opset `opset`; None attributes are omitted. Raises Refusal if ONNX's op lacks a data type.
        """
        return self.nodes(op_type, inputs, 1, opset=opset, **attributes)[0]  # type: ignore[arg-type]

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[str],
        count: int,
        *,
        absent: Sequence[int] = (),
        opset: int = 0,
        **attributes: object,
    ) -> tuple[str, ...]:
        """Write a node with `count` outputs, unnamed at the positions `absent`, and return their names. See `node`."""
        stated = {name: _plain(name, value) for name, value in attributes.items() if value is not None}
        node = self._node("", op_type, inputs, count, stated)
        node = replace(node, outputs=tuple("" if at in absent else name for at, name in enumerate(node.outputs)))
        self._declare(node, first_opset(op_type, max(opset, OLDEST_OPSET)))
        self._graph.nodes.append(node)
        return node.outputs

    def of_version(
        self,
        domain: str,
        op_type: str,
        version: int,
        inputs: Sequence[str],
        count: int,
        attributes: Mapping[str, object],
    ) -> tuple[str, ...]:
        """Write a node of an exact schema version, or raise Refusal if exports cannot contain it."""
        stated = {name: _plain(name, value) for name, value in attributes.items()}
        node = self._node(domain, op_type, inputs, count, stated)
        opset = version if domain else opset_of_version(op_type, version, OLDEST_OPSET)
        if opset is None:
            raise Refusal(
                Reason.UNSUPPORTED_VERSION, f"no opset from {OLDEST_OPSET} on contains version {version} of {op_type}"
            )
        self._graph.opsets[domain] = max(self._graph.opsets.get(domain, 1), opset)
        self._graph.nodes.append(node)
        return node.outputs

    def _node(
        self, domain: str, op_type: str, inputs: Sequence[str], count: int, attributes: Mapping[str, object]
    ) -> WrittenNode:
        read = list(inputs)
        while read and not read[-1]:
            read.pop()
        output_names = tuple(self._graph.unique(f"{self.result.name}/{op_type}") for _ in range(count))
        return WrittenNode(
            op_type=op_type, inputs=tuple(read), outputs=output_names, attributes=attributes, domain=domain
        )

    def _declare(self, node: WrittenNode, opset: int) -> None:
        types = types_of(node.op_type, opset)
        input_dtypes = [self._graph.dtypes.get(name) for name in node.inputs]
        places = [*types.inputs, *[types.inputs[-1]] * (len(input_dtypes) - len(types.inputs) if types.variadic else 0)]
        op = f"ONNX's {node.op_type} of opset {opset}"
        for dtype, (_, allowed) in zip(input_dtypes, places, strict=False):
            if dtype is not None and type_text(dtype) not in allowed:
                raise Refusal(Reason.UNSUPPORTED_DTYPE, f"{op} does not accept {dtype.value}")
        self._graph.opsets[""] = max(self._graph.opsets[""], opset)
        for name, dtype, allowed in result_types(node, types, input_dtypes):
            if dtype is None:
                continue
            if type_text(dtype) not in allowed:
                raise Refusal(Reason.UNSUPPORTED_DTYPE, f"{op} does not produce {dtype.value}")
            self._graph.dtypes[name] = dtype

    def dtype_of(self, name: str) -> DataType | None:
        return self._graph.dtypes.get(name)

    def declared(self, name: str, dtype: DataType) -> str:
        """Record the data type of a value that schemas do not determine, and return its name."""
        self._graph.dtypes[name] = dtype
        return name

    def constant(self, value: Array) -> str:
        return self._graph.constant(f"{self.result.name}/constant", value)

    def number(self, value: float, dtype: DataType) -> str:
        return self.constant(np.asarray(value, dtype.array_type))

    def integers(self, *values: int) -> str:
        """Return a constant int64 vector, or raise Refusal for symbolic sizes."""
        return self.constant(np.array(self.static_sizes(values), np.int64))

    def static_sizes(self, sizes: tuple[_Number, ...]) -> tuple[_Number, ...]:
        """Return the sizes, or raise Refusal if one is symbolic."""
        return _plain("sizes", sizes)

    def index(self, name: str) -> str:
        return name if self.dtype_of(name) in (DataType.INT32, DataType.INT64) else self.cast(name, DataType.INT64)

    def swapped(self, name: str, rank: int) -> str:
        """Write a Transpose that swaps the last two axes."""
        return self.node("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])

    def cast(self, name: str, dtype: DataType) -> str:
        if self.dtype_of(name) is dtype:
            return name
        return self.node("Cast", name, to=dtype)


def _plain(name: str, value: _Value) -> _Value:
    if is_symbolic(value):
        raise Refusal(
            Reason.DYNAMIC_SHAPE,
            f"attribute {name!r} depends on dynamic sizes, which no ONNX attribute can express",
        )
    return value
