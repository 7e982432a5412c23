"""Graph and node writers, and the registry of exporters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import Array, DataType, Operand, OperandType, freeze
from nnadapter.ir.symbolic_numbers import is_symbolic
from nnadapter.onnx.construction import WrittenNode, first_opset, opset_of_version, result_types, type_text, types_of
from nnadapter.onnx.schemas import Refusal
from partition.graph import Reason

_Number = TypeVar("_Number", int, float)
_Value = TypeVar("_Value")
OLDEST_OPSET = 24
"""What models are written in, unless an op is newer. ONNX Runtime computes all of it; of some versions that came with
later opsets (QuantizeLinear-28) it has none."""


@dataclass(eq=False)
class GraphWriter:
    """The graph in the making: everything that is written, and the names that are taken."""

    nodes: list[WrittenNode] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=lambda: {"": OLDEST_OPSET})
    dtypes: dict[str, DataType] = field(default_factory=dict)
    """Of values, as far as they are known."""
    _taken: set[str] = field(default_factory=set)
    _taken_nodes: set[str] = field(default_factory=set)
    _numbers: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    """Small constants by what they hold."""
    _count: int = 0

    def unique(self, name: str) -> str:
        """The name, or one like it that no value has yet; it is taken from here on."""
        return self._unique(name or "value", self._taken)

    def unique_node(self, name: str) -> str:
        """The name, or one like it that no node has yet; it is taken from here on."""
        return self._unique(name or "node", self._taken_nodes)

    def _unique(self, name: str, taken: set[str]) -> str:
        candidate = name
        while candidate in taken:
            self._count += 1
            candidate = f"{name}/{self._count}"
        taken.add(candidate)
        return candidate

    def constant(self, name: str, value: Array) -> str:
        """The name of a small constant, which stands there once however often it is used."""
        key = (value.dtype.name, value.shape, value.tobytes())
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = self.unique(name)
            self.constants[known] = freeze(value)
            self.dtypes[known] = DataType(value.dtype.name)
        return known


class NodeWriter:
    """Writes the nodes of one operation.

    Args:
        graph: that they are part of.
        operation: by name: `write.operation.strides`.
        inputs: names of the values that it reads, empty where one is absent; one for every role.
        types: of these.
    """

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
        """An image with channels last is `[N, C, H, W]` here, and the operation's result is that too."""

    def reading(self, inputs: Sequence[str], types: Sequence[OperandType | None]) -> NodeWriter:
        """A writer of the same operation, on other values."""
        return NodeWriter(self._graph, self.operation, inputs, types)

    @property
    def type(self) -> OperandType:
        """The type of the first input."""
        first = self.types[0]
        assert first is not None, "no operation has an optional first input"
        return first

    @property
    def result(self) -> Operand:
        """The first operand that the operation makes."""
        return self.operation.output

    def node(self, op_type: str, *inputs: str, opset: int = 0, **attributes: object) -> str:
        """Write a node of one output, and return the output's name.

        Args:
            op_type: the op.
            inputs: empty names for what is absent.
            opset: the oldest that has what the node says.
            attributes: of the node; None for one that it does not state.

        Raises:
            Refusal: the op takes no operand of such a data type.
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
        """Write a node of so many outputs, of which those at some positions are absent, and return their names.

        See `node`.
        """
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
        """Write a node of any op in exactly one version of its schema, and return the names of its outputs.

        Raises:
            Refusal: no opset that models are written in has this version.
        """
        stated = {name: _plain(name, value) for name, value in attributes.items()}
        node = self._node(domain, op_type, inputs, count, stated)
        opset = version if domain else opset_of_version(op_type, version, OLDEST_OPSET)
        if opset is None:
            raise Refusal(
                Reason.UNSUPPORTED_VERSION, f"{op_type} of version {version} is older than opset {OLDEST_OPSET} has it"
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
        made = tuple(self._graph.unique(f"{self.result.name}/{op_type}") for _ in range(count))
        return WrittenNode(op_type=op_type, inputs=tuple(read), outputs=made, attributes=attributes, domain=domain)

    def _declare(self, node: WrittenNode, opset: int) -> None:
        """Take note of the node's opset and of the data types of its results, if its schema takes its inputs."""
        types = types_of(node.op_type, opset)
        known = [self._graph.dtypes.get(name) for name in node.inputs]
        places = [*types.inputs, *[types.inputs[-1]] * (len(known) - len(types.inputs) if types.variadic else 0)]
        for dtype, (_, allowed) in zip(known, places, strict=False):
            if dtype is not None and type_text(dtype) not in allowed:
                raise Refusal(
                    Reason.UNSUPPORTED_DTYPE, f"ONNX's {node.op_type} of opset {opset} takes no {dtype.value}"
                )
        self._graph.opsets[""] = max(self._graph.opsets[""], opset)
        for name, dtype, allowed in result_types(node, types, known):
            if dtype is not None and type_text(dtype) not in allowed:
                raise Refusal(
                    Reason.UNSUPPORTED_DTYPE, f"ONNX's {node.op_type} of opset {opset} makes no {dtype.value}"
                )
            if dtype is not None:
                self._graph.dtypes[name] = dtype

    def dtype_of(self, name: str) -> DataType | None:
        """The data type of a value, if it is known."""
        return self._graph.dtypes.get(name)

    def declared(self, name: str, dtype: DataType) -> str:
        """A value whose data type no schema tells."""
        self._graph.dtypes[name] = dtype
        return name

    def constant(self, value: Array) -> str:
        """A constant, by name."""
        return self._graph.constant(f"{self.result.name}/constant", value)

    def number(self, value: float, dtype: DataType) -> str:
        """A constant without axes."""
        return self.constant(np.asarray(value, dtype.array_type))

    def integers(self, *values: int) -> str:
        """A constant vector of int64.

        Raises:
            Refusal: they follow from sizes that the model leaves open.
        """
        return self.constant(np.array(self.known(values), np.int64))

    def known(self, sizes: tuple[_Number, ...]) -> tuple[_Number, ...]:
        """Return sizes that a constant is made of.

        Raises:
            Refusal: they follow from dynamic dimensions of the model.
        """
        return _plain("sizes", sizes)

    def index(self, name: str) -> str:
        """Return indices in a data type that ONNX takes for them."""
        return name if self.dtype_of(name) in (DataType.INT32, DataType.INT64) else self.cast(name, DataType.INT64)

    def swapped(self, name: str, rank: int) -> str:
        """Return a value with its last two axes exchanged."""
        return self.node("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])

    def cast(self, name: str, dtype: DataType) -> str:
        """A value in another data type; itself if it is of that one."""
        if self.dtype_of(name) is dtype:
            return name
        return self.node("Cast", name, to=dtype)


def _plain(name: str, value: _Value) -> _Value:
    """What a node may state of itself; a Refusal where that follows from open sizes."""
    if is_symbolic(value):
        raise Refusal(
            Reason.DYNAMIC_SHAPE,
            f"attribute {name!r} follows from sizes that the model leaves open, which no ONNX attribute can say",
        )
    return value
