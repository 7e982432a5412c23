"""Conversion context: facts about the ONNX graph, and the IR model under construction.

Operations on constants, such as dequantization, stay in the model, so that devices choose between integers and reals.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from nnadapter.onnx.schemas import Refusal, data_type_name
from nnadapter.records import dataclass, field, replace
from partition.graph import Reason, Value

_KEEPING = frozenset({"ASSIGN", "RESHAPE", "TRANSPOSE"})
"""Operations that copy or move elements without changing them."""


def invalid(detail: str) -> Refusal:
    """Return the refusal of a node that violates its specification."""
    return Refusal(Reason.INVALID_NODE, detail)


@dataclass(frozen=True, slots=True, eq=False)
class Dequantized:
    """Constant that was dequantized: its integers and their quantization."""

    integers: Array
    quantization: Quantization


@dataclass(frozen=True, slots=True, eq=False)
class KnownContents:
    """Contents of a value that is known before the run, computed on first use."""

    contents: Callable[[], Array]
    source: Dequantized | None = None
    """Integers that the contents were dequantized from, in the same shape."""


def passed_on(type_: str, attributes: Attributes, input_contents: KnownContents) -> KnownContents | None:
    """Return an operation's result contents; None if the operation changes elements."""
    if type_ not in _KEEPING or any(map(is_symbolic, attributes.values())):
        return None
    exact = tuple(sorted(attributes.items()))
    source = input_contents.source
    if source is not None:
        is_free = type_ == "ASSIGN" or source.quantization.axis is None
        source = Dequantized(_moved(source.integers, type_, exact), source.quantization) if is_free else None
    return KnownContents(partial(_moved_later, input_contents.contents, type_, exact), source)


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
    """Types, constants and known contents of one ONNX graph's values.

    `sizes` has symbolic arrays of the values computed from shapes; converters may add entries.
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
        self._inner_constants: dict[str, Array] = {}
        self._node = OnnxNode("", "", "", 0, (), ())

    def constant(self, name: str) -> Array:
        """Return an ONNX value's contents, or raise Refusal if not known before the run."""
        array = self._constants.get(name)
        if array is not None:
            return array
        if name in self._sizes:
            return self._sizes[name].plain()
        if name in self._computed:
            return self._computed[name].contents()
        if not name:
            raise invalid(f"{self._node.op_type} lacks a required input")
        raise Refusal(
            Reason.NOT_CONSTANT,
            f"{self._place(name)} of {self._node.op_type}, {name!r}, is known only when the model runs; expected an "
            "initializer or a value that follows from initializers",
        )

    def _place(self, name: str) -> str:
        inputs = self._node.inputs
        return f"input {inputs.index(name)}" if name in inputs else "a value inside"

    def record_inner_constant(self, name: str, contents: Array | SymbolicArray) -> None:
        """Record a constant from the current node's function body."""
        if isinstance(contents, SymbolicArray):
            # `sizes` is a mutable dict whenever sizes are symbolic
            cast("dict[str, SymbolicArray]", self._sizes)[name] = contents
            return
        if not self._inner_constants:
            self._constants = ChainMap(self._inner_constants, self._constants)  # type: ignore[arg-type]
        self._inner_constants[name] = contents

    def is_constant(self, name: str) -> bool:
        return name in self._constants or name in self._sizes or name in self._computed

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a known value's integers, symbolic if computed from shapes.

        Returns None for other types; raises as `constant`.
        """
        size_array = self._sizes.get(name)
        if size_array is not None:
            return tuple(size_array.items.flat) if size_array.dtype.kind in "iu" else None
        array = self.constant(name)
        return tuple(array.reshape(-1).tolist()) if array.dtype.kind in "iu" else None

    def real(self, name: str) -> float | None:
        """Return a known real number, symbolic if computed from shapes.

        Returns None for several numbers or another type; raises as `constant`.
        """
        size_array = self._sizes.get(name)
        if size_array is None or size_array.dtype.kind != "f":
            array = self.constant(name)
            return float(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind not in "iub" else None
        return size_array.items.reshape(-1)[0] if size_array.items.size == 1 else None

    def optional_constant(self, node: OnnxNode, position: int) -> Array | None:
        name = node.input(position)
        return self.constant(name) if name else None

    def constant_integers(self, node: OnnxNode, position: int) -> tuple[int, ...] | None:
        """Return a constant input's integers; None if absent. Raises Refusal."""
        return self.required_integers(node, position) if node.input(position) else None

    def required_integers(self, node: OnnxNode, position: int) -> tuple[int, ...]:
        name = node.input(position)
        integers = self.integers(name)
        if integers is None:
            dtype = self.constant(name).dtype.name
            raise invalid(f"input {position} of {node.op_type} holds {dtype}; expected integers")
        return integers

    def single_integer(self, node: OnnxNode, position: int) -> int:
        integers = self.required_integers(node, position)
        if len(integers) != 1:
            raise invalid(f"input {position} of {node.op_type} is {list(integers)}; expected one integer")
        return integers[0]

    def attribute_or_input(self, node: OnnxNode, name: str, position: int) -> tuple[int, ...] | None:
        """Return the integers of an attribute or, in later versions, of a constant input; None if absent."""
        return node.integers(name) if name in node.attributes else self.constant_integers(node, position)

    def dequantized(self, name: str) -> Dequantized | None:
        known_value = self._computed.get(name)
        return None if known_value is None else known_value.source

    def record_contents(self, name: str, contents: Callable[[], Array], source: Dequantized | None = None) -> None:
        """Record an output's lazily computed contents, so that later nodes can use it as a constant."""
        self._computed[name] = KnownContents(contents, source)

    def declared(self, name: str) -> OperandType:
        """Return a value's type in the ONNX graph, with symbolic sizes, or raise Refusal."""
        declared_type = self._types.get(name)
        if declared_type is None:
            if not name:
                raise invalid(f"{self._node.op_type} lacks a required input")
            declared_type = self._types[name] = self._read_type(name)
        return declared_type

    def forget_type(self, name: str) -> None:
        self._types.pop(name, None)

    def _read_type(self, name: str) -> OperandType:
        value, size = self._constants.get(name), self._sizes.get(name)
        if value is not None:
            return OperandType(_data_type(name, value.dtype.name), value.shape)
        if size is not None:
            return OperandType(_data_type(name, size.dtype.name), size.items.shape)
        entry = self._values.get(name) or Value(name)
        # symbolic shapes never repeat, so they are not cached
        if entry.shape is None or not _PLAIN.issuperset(map(type, entry.shape)):
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
            Reason.DATA_DEPENDENT_SHAPE, f"value {value.name!r} has {shape}, which depends on the contents of a tensor"
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
    """Snapshot of the model's size, for `undo`."""

    builder: tuple[int, int]
    operands: int
    guessed: bool


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedNode:
    """Quantized operands and result of a real-valued op."""

    operands: Mapping[str, int] = field(default_factory=dict)
    result: QuantizedType | None = None
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    """Extra attributes of the operation that computes `result`, such as a fused activation."""


_NOTHING = QuantizedNode()


class ConversionContext(GraphValues):
    """Builder of the IR model; a refused node leaves it unchanged. See `GraphValues`.

    `typed_names` lists the values with reliable declared types; outputs of operations need no entry. With
    `takes_sizes`, values computed from shapes become model inputs instead of constants, and need no guards.
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
        """True if a converter used a declared type that may be wrong."""
        self.builder = ModelBuilder()
        self._operands: dict[str, int] = {}
        self._computed_operands: dict[str, int] = {}
        self._computed_names: dict[int, str] = {}
        self._quantized = _NOTHING
        self._made = 0

    @property
    def operand_of(self) -> Mapping[str, int]:
        return self._operands

    def begin(self, node: OnnxNode) -> Mark:
        """Make `node` the origin of the next operations, and return the mark for `undo`."""
        self._node = node
        self._made = 0
        return self.mark()

    def mark(self) -> Mark:
        return Mark(self.builder.mark(), len(self._operands), self.guessed)

    def undo(self, mark: Mark) -> None:
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
        """Return an ONNX value's operand, added as a constant or model input if necessary, or raise Refusal."""
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
        """Make converters of real-valued ops read and produce quantized operands within the block."""
        self._quantized = meaning
        try:
            yield
        finally:
            self._quantized = _NOTHING

    def optional_operand(self, name: str) -> int:
        """Return an ONNX value's operand; `ABSENT` if the name is empty."""
        return self.operand(name) if name else ABSENT

    def type_of(self, value: int | str) -> OperandType:
        if isinstance(value, str):
            operand = self._quantized.operands.get(value, self._operands.get(value))
            if operand is None:
                self.guessed = self.guessed or not (value in self._typed_names or self.is_constant(value))
                return self.declared(value)
            value = operand
        return self.builder.type_of(value)

    def dimensions(self, name: str) -> tuple[int, ...]:
        return self.type_of(name).dimensions

    def rank(self, node: OnnxNode) -> int:
        """Return the rank of a node's first input, or raise Refusal."""
        return len(self.dimensions(node.input(0)))

    def axis(self, node: OnnxNode, default: int | None = None) -> int:
        """Return a node's attribute `axis` as a nonnegative axis of its first input, or raise Refusal."""
        return normalize_axis(node, node.integer("axis", default), self.rank(node))

    def operands(self, node: OnnxNode, required: int, optional: int = 0) -> tuple[int, ...]:
        """Return the operands of a node's first inputs.

        The first `required` inputs must be present. Absent ones of the next `optional` are `ABSENT`; trailing absent
        ones are omitted.
        """
        further = [self.optional_operand(node.input(required + position)) for position in range(optional)]
        while further and further[-1] == ABSENT:
            further.pop()
        return (*(self.operand(node.input(position)) for position in range(required)), *further)

    def add_for(
        self,
        node: OnnxNode,
        type_: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        required: int = 1,
        optional: int = 0,
    ) -> None:
        """Add the operation that computes a node's outputs from its first inputs. See `operands`."""
        self.add(type_, self.operands(node, required, optional), attributes, node.outputs)

    def apply(self, type_: str, *inputs: int, outputs: Sequence[str] = (), **attributes: AttributeValue) -> int:
        """Add an operation, and return its first output; attributes are keywords. See `add`."""
        return self.add(type_, inputs, attributes, outputs)[0]

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
        """Add an operation of the current node, and return its outputs, or raise Refusal.

        Args:
            type_: operation type.
            inputs: operands by role.
            attributes: missing ones take their defaults.
            outputs: ONNX names; empty for intermediate results.
            quantized: types of quantized outputs.
            makes_result: quantize and activate the output like the node's result; later operations only move elements.
        """
        if (outputs or makes_result) and self._quantized.result is not None:
            quantized, attributes = (self._quantized.result,), {**(attributes or {}), **self._quantized.attributes}
            self._quantized = replace(self._quantized, attributes={})  # apply an activation only once
        try:
            results = self.builder.add_operation(
                type_, inputs, attributes, outputs=outputs, origins=(self._node.name,), quantized=quantized
            )
        except InvalidModelError as error:
            raise self._refusal(type_, inputs, error) from error
        except DriverError as error:  # an external operation is at fault, not the model
            raise Refusal(Reason.DRIVER_ERROR, str(error)) from error
        for name, operand in zip(outputs, results, strict=False):
            if name:
                self._operands[name] = operand
        if outputs and not quantized:
            self._pass_on(type_, inputs, attributes or {}, outputs[0])
        return results

    def _pass_on(self, type_: str, inputs: Sequence[int], attributes: Mapping[str, AttributeValue], name: str) -> None:
        source = self._computed_names.get(inputs[0]) if len(inputs) == 1 else None
        result_contents = None if source is None else passed_on(type_, attributes, self._computed[source])
        if result_contents is not None:
            self._computed[name] = result_contents

    def add_constant(self, array: Array, quantization: Quantization | None = None) -> int:
        self._made += 1
        return self.builder.add_constant(f"{self._node.outputs[0]}%{self._made}", array, quantization)

    def is_fixed(self, name: str) -> bool:
        """Return whether a value is a constant of the model; with `takes_sizes`, no value computed from shapes is."""
        return self.is_constant(name) and not (self._takes_sizes and self._is_traced(name))

    def value_of(self, operand: int) -> Array | None:
        return self.builder.value_of(operand)

    def _refusal(self, type_: str, inputs: Sequence[int], error: InvalidModelError) -> Refusal:
        try:
            roles = schema_of(type_).inputs
        except InvalidModelError:  # external operation that is missing or broken
            return Refusal(Reason.UNSUPPORTED_OPERATION, str(error))
        for position, index in enumerate(inputs):
            role = roles[min(position, len(roles) - 1)]
            if index != ABSENT and self.builder.type_of(index).dtype not in role.dtypes:
                return Refusal(Reason.UNSUPPORTED_DTYPE, str(error))
        return invalid(str(error))

    def _add_outer(self, name: str) -> int:
        type_ = self.declared(name)
        if self.is_fixed(name):
            return self.builder.add_constant(name, self.constant(name))
        return self.builder.add_input(name, type_)

    def _is_traced(self, name: str) -> bool:
        sizes = self._sizes.get(name)
        return sizes is not None and sizes.is_traced


def data_type_attribute(node: OnnxNode, name: str, default: int | None = None) -> str:
    """Return the name of the data type that an attribute names by ONNX code, or raise Refusal."""
    dtype_name = data_type_name(node.integer(name, default))
    if dtype_name not in DataType.__members__.values():
        raise Refusal(
            Reason.UNSUPPORTED_TYPE,
            f"attribute {name!r} of {node.op_type} is {dtype_name}, which the adapter IR lacks",
        )
    return dtype_name


def normalize_axis(node: OnnxNode, axis: int, rank: int) -> int:
    """Return `axis` as a nonnegative number, or raise Refusal."""
    if not -rank <= axis < rank:
        raise invalid(f"axis of {node.op_type} is {axis}; expected {-rank} to {rank - 1} for rank {rank}")
    return axis + rank if axis < 0 else axis


def normalize_axes(node: OnnxNode, axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return distinct axes as nonnegative numbers, or raise Refusal."""
    normalized = tuple(normalize_axis(node, axis, rank) for axis in axes)
    if len(set(normalized)) != len(normalized):
        raise invalid(f"axes of {node.op_type} are {list(normalized)}; expected no duplicates")
    return normalized
