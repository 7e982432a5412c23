"""Conversion context: values known of the ONNX graph, and the IR model that grows.

What values hold that operations make of constants, such as dequantized weights, before the run.

Such operations stay in the model: only the device knows whether it rather has the integers or what they stand for. What
moves elements behind them passes on what is known.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from nnadapter.errors import DriverError, InvalidModelError
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.derived import derived
from nnadapter.ir.model import ABSENT
from nnadapter.ir.operand import Array, DataType, OperandType, Quantization, QuantizedType
from nnadapter.ir.operations import schema_of
from nnadapter.ir.passes.simplification import MOVES
from nnadapter.ir.schema import Attributes, AttributeValue
from nnadapter.ir.structure import SymbolicArray
from nnadapter.ir.symbolic_numbers import is_symbolic
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.schemas import Refusal
from partition.graph import Reason, Value

_KEEPING = frozenset({"ASSIGN", "RESHAPE", "TRANSPOSE"})
"""Operations whose result has just the elements of their input; what grows is left to the run."""


@dataclass(frozen=True, slots=True, eq=False)
class Dequantized:
    """A constant of integers and what they stand for."""

    integers: Array
    quantization: Quantization


@dataclass(frozen=True, slots=True, eq=False)
class KnownContents:
    """The contents of a value, worked out when they are asked for."""

    contents: Callable[[], Array]
    """Read-only, in the value's data type."""
    source: Dequantized | None = None
    """What they were dequantized from, with the dimensions of the value."""


def passed_on(type_: str, attributes: Attributes, known: KnownContents) -> KnownContents | None:
    """Return what is known of the result of an operation; None if it computes, or varies with the model's inputs.

    Args:
        type_: of the operation.
        attributes: all that matter for its result.
        known: of its one input.
    """
    if type_ not in _KEEPING or any(map(is_symbolic, attributes.values())):
        return None
    exact = tuple(sorted(attributes.items()))
    source = known.source
    if source is not None:
        is_free = type_ == "ASSIGN" or source.quantization.axis is None
        source = Dequantized(_moved(source.integers, type_, exact), source.quantization) if is_free else None
    return KnownContents(partial(_moved_later, known.contents, type_, exact), source)


def _moved_later(contents: Callable[[], Array], type_: str, attributes: tuple[tuple[str, Any], ...]) -> Array:
    return _moved(contents(), type_, attributes)


def _moved(x: Array, type_: str, attributes: tuple[tuple[str, Any], ...]) -> Array:
    return derived(_computed, x, type_=type_, attributes=attributes)


def _computed(x: Array, *, type_: str, attributes: tuple[tuple[str, Any], ...]) -> Array:
    result: Array = MOVES[type_](dict(attributes), x)
    return result


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


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the model had grown at some time."""

    builder: tuple[int, int]
    operands: int
    guessed: bool


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedNode:
    """A node on reals whose values are quantized."""

    operands: Mapping[str, int] = field(default_factory=dict)
    """What it reads in the place of values, by name."""
    result: QuantizedType | None = None
    """What its result is."""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    """More attributes of the operation that makes the result, such as a fused activation."""


_NOTHING = QuantizedNode()


class ConversionContext(GraphValues):
    """Adds the operations of one node after the other to one model; a refused node leaves nothing behind.

    Args:
        values: what is known of each value of the graph, by name.
        constants: contents of the initializers, by name.
        sizes: contents of what follows from shapes, by name, where those are traced; it may grow.
        typed_names: values whose types are known without a guess, beside constants and what operations make.
        takes_sizes: what follows from shapes is given to the model as an input where operations read it, not decided
            on.
    """

    def __init__(
        self,
        values: Mapping[str, Value],
        constants: Mapping[str, Array],
        sizes: Mapping[str, SymbolicArray] = MappingProxyType({}),
        typed_names: Collection[str] = (),
        *,
        takes_sizes: bool = False,
    ) -> None:
        super().__init__(values, constants, sizes)
        self._typed_names = typed_names
        self._takes_sizes = takes_sizes
        self.guessed = False
        """A converter asked for the type of what no operation has made, which is not traced."""
        self.builder = ModelBuilder()
        """Of the model that grows."""
        self._operands: dict[str, int] = {}
        self._computed_operands: dict[str, int] = {}
        self._computed_names: dict[int, str] = {}
        self._quantized = _NOTHING
        self._made = 0

    @property
    def operand_of(self) -> Mapping[str, int]:
        """The operand of every ONNX value that has one."""
        return self._operands

    def begin(self, node: OnnxNode) -> Mark:
        """Take `node` as the origin of the operations to come; returns what `undo` needs."""
        self._node = node
        self._made = 0
        return self.mark()

    def mark(self) -> Mark:
        """Return what `undo` needs to come back to where the model is now."""
        return Mark(self.builder.mark(), len(self._operands), self.guessed)

    def undo(self, mark: Mark) -> None:
        """Forget everything that was added since `mark`, and guessed."""
        self.builder.undo(mark.builder)
        self.guessed = mark.guessed
        for name in self._node.outputs:
            self._computed.pop(name, None)
        first, _ = mark.builder
        for name in [name for name, operand in self._computed_operands.items() if operand >= first]:
            del self._computed_names[self._computed_operands.pop(name)]
        while len(self._operands) > mark.operands:
            self._operands.popitem()

    def operand(self, name: str) -> int:
        """The operand of an ONNX value: a constant or a model input if no operation has made it.

        Raises:
            Refusal: there is no such value, or it is nothing that an operand can be.
        """
        if name in self._quantized.operands:
            return self._quantized.operands[name]
        if name in self._computed:
            return self._computed_operand(name)
        operand = self._operands.get(name)
        if operand is None:
            operand = self._operands[name] = self._add_outer(name)
        return operand

    def _computed_operand(self, name: str) -> int:
        operand = self._computed_operands.get(name)
        if operand is None:
            operand = self.builder.add_constant(f"{name}%constant", self.constant(name))
            self._computed_operands[name], self._computed_names[operand] = operand, name
        return operand

    @contextmanager
    def quantized(self, meaning: QuantizedNode) -> Iterator[None]:
        """Let converters of ops on reals read quantized operands, and make what they name quantized, meanwhile."""
        self._quantized = meaning
        try:
            yield
        finally:
            self._quantized = _NOTHING

    def optional_operand(self, name: str) -> int:
        """The operand of an ONNX value, `ABSENT` if the name is empty."""
        return self.operand(name) if name else ABSENT

    def type_of(self, value: int | str) -> OperandType:
        """The type of an operand, or the type that the graph gives for an ONNX value.

        Raises:
            Refusal: the value is no dense tensor of a known shape.
        """
        if isinstance(value, str):
            operand = self._quantized.operands.get(value, self._operands.get(value))
            if operand is None:
                self.guessed = self.guessed or not (value in self._typed_names or self.is_constant(value))
                return self.declared(value)
            value = operand
        return self.builder.type_of(value)

    def dimensions(self, name: str) -> tuple[int, ...]:
        """The dimensions of an ONNX value."""
        return self.type_of(name).dimensions

    def add(
        self,
        type_: str,
        inputs: Sequence[int],
        attributes: Mapping[str, AttributeValue] | None = None,
        outputs: Sequence[str] = (),
        quantized: Sequence[QuantizedType | None] = (),
        *,
        makes_result: bool = False,
    ) -> tuple[int, ...]:
        """Add an operation that stands for the current node.

        Args:
            type_: a row of the schema table.
            inputs: operands by role.
            attributes: by name; what is not given takes its default.
            outputs: names of the ONNX values that its outputs are; none for intermediate results.
            quantized: by output, data type and quantization of those that are quantized.
            makes_result: what comes behind it, under the names of the node's outputs, only moves its result.

        Raises:
            Refusal: the operation does not take such operands or attributes.
        """
        if (outputs or makes_result) and self._quantized.result is not None:
            quantized, attributes = (self._quantized.result,), {**(attributes or {}), **self._quantized.attributes}
            self._quantized = replace(self._quantized, attributes={})  # an activation is applied once
        try:
            made = self.builder.add_operation(
                type_, inputs, attributes, outputs=outputs, origins=(self._node.name,), quantized=quantized
            )
        except InvalidModelError as error:
            raise self._refusal(type_, inputs, error) from error
        except DriverError as error:  # a row from outside is at fault, and not the model
            raise Refusal(Reason.DRIVER_ERROR, str(error)) from error
        for name, operand in zip(outputs, made, strict=False):
            if name:
                self._operands[name] = operand
        if outputs and not quantized:
            self._pass_on(type_, inputs, attributes or {}, outputs[0])
        return made

    def _pass_on(self, type_: str, inputs: Sequence[int], attributes: Mapping[str, AttributeValue], name: str) -> None:
        source = self._computed_names.get(inputs[0]) if len(inputs) == 1 else None
        known = None if source is None else passed_on(type_, attributes, self._computed[source])
        if known is not None:
            self._computed[name] = known

    def add_constant(self, array: Array, quantization: Quantization | None = None) -> int:
        """Add a constant that belongs to the current node."""
        self._made += 1
        return self.builder.add_constant(f"{self._node.outputs[0]}%{self._made}", array, quantization)

    def is_fixed(self, name: str) -> bool:
        """Whether the value is a constant at all sizes that the model is converted for."""
        return self.is_constant(name) and not (self._takes_sizes and self._is_traced(name))

    def value_of(self, operand: int) -> Array | None:
        """The contents of a constant operand, None for any other."""
        return self.builder.value_of(operand)

    def _refusal(self, type_: str, inputs: Sequence[int], error: InvalidModelError) -> Refusal:
        """A data type that the operation is not defined for is no fault of the model."""
        try:
            roles = schema_of(type_).inputs
        except InvalidModelError:  # of a package that lacks it, or that is broken
            return Refusal(Reason.UNSUPPORTED_OPERATION, str(error))
        for position, index in enumerate(inputs):
            role = roles[min(position, len(roles) - 1)]
            if index != ABSENT and self.builder.type_of(index).dtype not in role.dtypes:
                return Refusal(Reason.UNSUPPORTED_DTYPE, str(error))
        return Refusal(Reason.INVALID_NODE, str(error))

    def _add_outer(self, name: str) -> int:
        type_ = self.declared(name)
        if self.is_fixed(name):
            return self.builder.add_constant(name, self.constant(name))
        return self.builder.add_input(name, type_)

    def _is_traced(self, name: str) -> bool:
        sizes = self._sizes.get(name)
        return sizes is not None and sizes.is_traced


def constant_integers(context: ConversionContext, node: OnnxNode, position: int) -> tuple[int, ...] | None:
    """Return the integers of an input that must be constant, or None if it is absent.

    Raises:
        Refusal: it is not constant, or holds no integers.
    """
    return required_integers(context, node, position) if node.input(position) else None


def required_integers(context: ConversionContext, node: OnnxNode, position: int) -> tuple[int, ...]:
    """Return the integers of an input that must be there and constant.

    Raises:
        Refusal: it is absent, not constant, or holds no integers.
    """
    name = node.input(position)
    integers = context.integers(name)
    if integers is None:
        dtype = context.constant(name).dtype.name
        raise Refusal(Reason.INVALID_NODE, f"input {position} of {node.op_type} holds {dtype}; expected integers")
    return integers


def normalize_axis(node: OnnxNode, axis: int, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        Refusal: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise Refusal(
            Reason.INVALID_NODE, f"axis of {node.op_type} is {axis}; expected -{rank} to {rank - 1} for rank {rank}"
        )
    return axis + rank if axis < 0 else axis


def normalize_axes(node: OnnxNode, axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return axes counted from the front, in their order.

    Raises:
        Refusal: there is no such axis, or one is named twice.
    """
    normalized = tuple(normalize_axis(node, axis, rank) for axis in axes)
    if len(set(normalized)) != len(normalized):
        raise Refusal(Reason.INVALID_NODE, f"axes of {node.op_type} are {list(normalized)}; expected none twice")
    return normalized
