"""What is known of the values of the graph that is converted: types, and contents where those are constants."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

from nnadapter.converters.known import Dequantized, KnownContents
from nnadapter.ir.operand import Array, DataType, OperandType
from nnadapter.ir.size_arrays import SymbolicArray
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.graph import Value
from partition.verdict import Reason

_DATA_TYPES: Mapping[str, DataType] = {data_type.value: data_type for data_type in DataType}
_PLAIN = frozenset((int,))


class GraphValues:
    """The values of one graph, as converters ask for them while its nodes are converted in order.

    Args:
        values: what is known of each value of the graph, by name.
        constants: contents of the initializers, by name.
        sizes: contents of what follows from shapes, by name, where those are traced; it may grow.
    """

    def __init__(
        self,
        values: Mapping[str, Value],
        constants: Mapping[str, Array],
        sizes: Mapping[str, SymbolicArray] = MappingProxyType({}),
    ) -> None:
        self._values, self._constants, self._sizes = values, constants, sizes
        self._types: dict[str, OperandType] = {}
        self._types_by_kind: dict[tuple[str | None, tuple[object, ...]], OperandType] = {}
        self._computed: dict[str, KnownContents] = {}
        self._held: dict[str, Array] = {}
        self._node = OnnxNode("", "", "", 0, (), ())

    def constant(self, name: str) -> Array:
        """The contents of an ONNX value.

        Raises:
            Refusal: they are not known before the run.
        """
        array = self._constants.get(name)
        if array is not None:
            return array
        if name in self._sizes:
            return self._sizes[name].plain()
        if name in self._computed:
            return self._computed[name].contents()
        if not name:
            raise Refusal(Reason.INVALID_NODE, f"{self._node.op_type} lacks a required input")
        raise Refusal(
            Reason.NOT_CONSTANT,
            f"{self._place(name)} of {self._node.op_type}, {name!r}, is known only when the model runs; expected an "
            "initializer or what follows from initializers",
        )

    def _place(self, name: str) -> str:
        inputs = self._node.inputs
        return f"input {inputs.index(name)}" if name in inputs else "a value inside"

    def hold(self, name: str, contents: Array | SymbolicArray) -> None:
        """Say what a value inside of the current node contains, which the graph does not name."""
        if isinstance(contents, SymbolicArray):
            cast("dict[str, SymbolicArray]", self._sizes)[name] = contents  # sizes are traced: then they may grow
            return
        if not self._held:
            self._constants = ChainMap(self._held, self._constants)  # type: ignore[arg-type]
        self._held[name] = contents

    def is_constant(self, name: str) -> bool:
        """Whether the contents of an ONNX value are known."""
        return name in self._constants or name in self._sizes or name in self._computed

    def integers(self, name: str) -> tuple[int, ...] | None:
        """The contents of an ONNX value of integers, traced where they follow from shapes; None if it has others.

        Raises:
            Refusal: they are not known before the run.
        """
        size_array = self._sizes.get(name)
        if size_array is not None:
            return tuple(size_array.items.flat) if size_array.dtype.kind in "iu" else None
        array = self.constant(name)
        return tuple(array.reshape(-1).tolist()) if array.dtype.kind in "iu" else None

    def real(self, name: str) -> float | None:
        """The one real number of an ONNX value, traced where it follows from shapes; None if it has others.

        Raises:
            Refusal: it is not known before the run.
        """
        size_array = self._sizes.get(name)
        if size_array is None or size_array.dtype.kind != "f":
            array = self.constant(name)
            return float(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind not in "iub" else None
        return size_array.items.reshape(-1)[0] if size_array.items.size == 1 else None

    def optional_constant(self, node: OnnxNode, position: int) -> Array | None:
        """The contents of an input, None if it is absent.

        Raises:
            Refusal: it is there, and not known before the run.
        """
        name = node.input(position)
        return self.constant(name) if name else None

    def dequantized(self, name: str) -> Dequantized | None:
        """The constant of integers that an ONNX value was dequantized from; None for any other."""
        known_value = self._computed.get(name)
        return None if known_value is None else known_value.source

    def know(self, name: str, contents: Callable[[], Array], source: Dequantized | None = None) -> None:
        """Say what an output of the current node, which operations make of constants, contains.

        Nodes that are converted later read a constant in its place, so that they may be of the kind that needs one.
        Operations that only move its elements pass it on.

        Args:
            name: of the output.
            contents: called when they are needed.
            source: what they were dequantized from.
        """
        self._computed[name] = KnownContents(contents, source)

    def declared(self, name: str) -> OperandType:
        """The type that the graph gives for an ONNX value, for the sizes that are traced.

        Raises:
            Refusal: the value is no dense tensor of a known shape.
        """
        declared_type = self._types.get(name)
        if declared_type is None:
            if not name:
                raise Refusal(Reason.INVALID_NODE, f"{self._node.op_type} lacks a required input")
            declared_type = self._types[name] = self._read_type(name)
        return declared_type

    def forget_type(self, name: str) -> None:
        """Read the type of a value anew when it is asked for: its sizes were found since the last time."""
        self._types.pop(name, None)

    def _read_type(self, name: str) -> OperandType:
        value, size = self._constants.get(name), self._sizes.get(name)
        if value is not None:
            return OperandType(_data_type(name, value.dtype.name), value.shape)
        if size is not None:
            return OperandType(_data_type(name, size.dtype.name), size.items.shape)
        entry = self._values.get(name) or Value(name)
        if entry.shape is None or not _PLAIN.issuperset(map(type, entry.shape)):  # traced ones are never the same
            return _operand_type(entry)
        kind = entry.dtype, entry.shape
        type_ = self._types_by_kind.get(kind)
        if type_ is None:
            type_ = self._types_by_kind[kind] = _operand_type(entry)
        return type_


def _operand_type(value: Value) -> OperandType:
    data_type = _data_type(value.name, value.dtype)
    dimensions = value.static_shape
    if dimensions is not None:
        return OperandType(data_type, dimensions)
    shape = "an unknown rank" if value.shape is None else f"shape {list(value.shape)}"
    if value.data_dependent:
        raise Refusal(
            Reason.DATA_DEPENDENT_SHAPE, f"value {value.name!r} has {shape}, which the contents of a tensor decide"
        )
    raise Refusal(Reason.DYNAMIC_SHAPE, f"value {value.name!r} has {shape}; every dimension must be a known number")


def _data_type(name: str, dtype_name: str | None) -> DataType:
    data_type = _DATA_TYPES.get(dtype_name or "")
    if data_type is None:
        raise Refusal(
            Reason.UNSUPPORTED_TYPE, f"value {name!r} is {_kind(dtype_name)}, not a dense tensor of numbers or booleans"
        )
    return data_type


def _kind(dtype_name: str | None) -> str:
    if dtype_name is None:
        return "of an unknown type"
    return "of strings" if dtype_name in ("object", "string") else f"of type {dtype_name}"
