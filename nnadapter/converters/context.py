"""What a converter function works with: the values of the graph on one side, the IR model that grows on the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from nnadapter.converters.known import passed_on
from nnadapter.converters.values import GraphValues
from nnadapter.errors import DriverError, InvalidModelError
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.model import ABSENT
from nnadapter.ir.operand import Array, OperandType, Quantization, QuantizedType
from nnadapter.ir.operations import schema_of
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.size_arrays import SymbolicArray
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.graph import Value
from partition.verdict import Reason


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
