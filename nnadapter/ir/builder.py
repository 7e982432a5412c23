"""Model builder: operand by operand, with types inferred, and its arguments checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, DataType, Lifetime, Operand, OperandType, Quantization, QuantizedType, freeze
from nnadapter.ir.operand_checks import DTYPES, check_quantization_fields, checked_type, is_one_of
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.verification import Inferences


def is_number(index: object) -> bool:
    """Whether something can be the number of an operand: an int or numpy's; a bool is none."""
    return type(index) is int or (isinstance(index, (int, np.integer)) and not isinstance(index, bool))


def check_arguments(
    type_: object, inputs: object, attributes: object, *, outputs: object, origins: object, quantized: object
) -> None:
    """Check the kinds of what `ModelBuilder.add_operation` got; operands themselves are looked at later.

    Raises:
        InvalidModelError: one is of another kind.
    """
    if not isinstance(type_, str):
        raise InvalidModelError(f"an operation's type is {type_!r}, expected a str such as 'CONV_2D'")
    if type(inputs) is not tuple and (isinstance(inputs, str) or not isinstance(inputs, Iterable)):
        raise InvalidModelError(f"{type_}: inputs are {inputs!r}, expected a list of operands")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise InvalidModelError(f"{type_}: attributes are {attributes!r}, expected a dict of values by name")
    _check_list(type_, "outputs", outputs, str)
    _check_list(type_, "origins", origins, str)
    if type(quantized) is tuple and not quantized:  # nearly always
        return
    _check_list(type_, "quantized", quantized, (QuantizedType, type(None)))
    for position, result in enumerate(cast("Sequence[QuantizedType | None]", quantized)):
        if result is not None:
            _check_quantized(f"{type_}: output {position}", result)


def _check_quantized(which: str, result: QuantizedType) -> None:
    if not is_one_of(DTYPES, result.dtype):
        raise InvalidModelError(f"{which} is quantized as {result.dtype!r}, expected a data type of integers")
    check_quantization_fields(which, result.quantization)


def _check_list(type_: str, name: str, entries: object, kind: type | tuple[type, ...]) -> None:
    if type(entries) is tuple and (not entries or (len(entries) == 1 and type(entries[0]) is kind)):  # nearly always
        return
    if (
        isinstance(entries, str)
        or not isinstance(entries, Sequence)
        or not all(isinstance(entry, kind) for entry in entries)
    ):
        expected = "names" if kind is str else "QuantizedType, or None,"
        raise InvalidModelError(f"{type_}: {name} is {entries!r}, expected a list of {expected}")


def check_counts(type_: str, count: int, *, outputs: Sequence[str], quantized: Sequence[QuantizedType | None]) -> None:
    """Check that nothing is said of outputs that an operation of `count` outputs does not have.

    Raises:
        InvalidModelError: there are more names or quantized types than outputs.
    """
    for name, entries in (("outputs", outputs), ("quantized", quantized)):
        if len(entries) > count and any(entries[count:]):
            extra = list(entries[count:])
            raise InvalidModelError(
                f"{type_}: {name} has {len(entries)} entries, expected at most {count}; leave out {extra}"
            )


class ModelBuilder:
    """Builds one model. Operands are referred to by the numbers that the `add_…` methods return.

    Source: NNAdapterModel_addOperand, _addOperation, _identifyInputsAndOutputs, _finish.
    """

    def __init__(self) -> None:
        self._operands: list[Operand] = []
        self._operations: list[Operation] = []
        self._inputs: list[int] = []
        self._names: set[str] = set()
        self._made_up: dict[str, int] = {}
        """Operands by the names that were made up for them, which are left to whoever comes with such a name."""
        self._next = 0
        """The next number to make a name of, if no operand has a larger one."""
        self._inferences = Inferences()

    def type_of(self, operand: int) -> OperandType:
        """The type of an operand that was added."""
        return self._operand(operand, "this").type

    def value_of(self, operand: int) -> Array | None:
        """The contents of a constant operand, None for any other."""
        return self._operand(operand, "this").value

    def add_input(self, name: str, type_: OperandType) -> int:
        """Add a model input.

        Raises:
            InvalidModelError: the name is taken, or the type is none.
        """
        shared_type = self._inferences.shared(checked_type(name, type_))
        index = self._add(Operand(name, shared_type, Lifetime.MODEL_INPUT))
        self._inputs.append(index)
        return index

    def add_constant(self, name: str, value: Array, quantization: Quantization | None = None) -> int:
        """Add a constant; `value` is kept, read-only, and not copied where it is contiguous.

        Raises:
            InvalidModelError: the name is taken, or `value` is no array of a data type that models know.
        """
        if not isinstance(value, np.ndarray):
            raise InvalidModelError(f"constant {name!r} is {type(value).__name__}, expected a numpy array")
        if value.dtype.name not in DTYPES:
            raise InvalidModelError(f"constant {name!r} holds {value.dtype}, expected one of {', '.join(DTYPES)}")
        array = freeze(value)
        type_ = OperandType(DataType(array.dtype.name), array.shape, quantization=quantization)
        shared_type = self._inferences.shared(checked_type(name, type_))
        return self._add(Operand(name, shared_type, Lifetime.CONSTANT, array))

    def add_operation(
        self,
        type_: str,
        inputs: Sequence[int],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        outputs: Sequence[str] = (),
        origins: Sequence[str] = (),
        quantized: Sequence[QuantizedType | None] = (),
    ) -> tuple[int, ...]:
        """Add an operation and one operand per output, whose types the schema's shape rule gives.

        Args:
            type_: a row of the schema table, such as `CONV_2D`.
            inputs: operands by role; `ABSENT` for an optional one that is left out in the middle.
            attributes: by name; what is not given takes its default.
            outputs: names for the outputs; made up where they are missing.
            origins: names of the ONNX nodes that the operation stands for.
            quantized: by output, data type and quantization of those that are quantized; None, or left out, for others.

        Raises:
            InvalidModelError: unknown type, inputs or attributes that do not fit the schema, inputs that do not exist,
                more names or quantized types than there are outputs, or something of the wrong kind.
        """
        check_arguments(type_, inputs, attributes, outputs=outputs, origins=origins, quantized=quantized)
        inputs = tuple(inputs)
        types = [None if _is_absent(index) else self._operand(index, type_).type for index in inputs]
        complete, results = self._inferences.of(type_, types, attributes or {}, quantized)
        check_counts(type_, len(results), outputs=outputs, quantized=quantized)
        result_indices = tuple(
            [
                self._add_result(outputs[position] if position < len(outputs) else "", result)
                for position, result in enumerate(results)
            ]
        )
        self._operations.append(Operation(type_, inputs, result_indices, complete, tuple(origins)))
        return result_indices

    def mark(self) -> tuple[int, int]:
        """How far the model has grown, for `undo`: the numbers of operands and operations."""
        return len(self._operands), len(self._operations)

    def undo(self, mark: tuple[int, int]) -> None:
        """Take away every operand and operation that was added since `mark` was taken."""
        operands, operations = mark
        for operand in self._operands[operands:]:
            self._names.discard(operand.name)
            self._made_up.pop(operand.name, None)
        del self._operands[operands:]
        del self._operations[operations:]
        self._next = 0
        while self._inputs and self._inputs[-1] >= operands:
            self._inputs.pop()

    def finish(self, outputs: Sequence[int]) -> Model:
        """Return the model whose outputs are `outputs`, in that order. The builder is not to be used after it.

        Raises:
            InvalidModelError: an output is no operand of the model.
        """
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            raise InvalidModelError(f"model outputs are {outputs!r}, expected a list of operands")
        outputs = tuple(outputs)
        for index in outputs:
            if not (is_number(index) and 0 <= index < len(self._operands)):
                raise InvalidModelError(f"model output {index!r} is no operand of the model of {len(self._operands)}")
        operands = list(self._operands)
        for index in outputs:
            operand = operands[index]
            if operand.lifetime is Lifetime.TEMPORARY:
                operands[index] = Operand(operand.name, operand.type, Lifetime.MODEL_OUTPUT)
        # Everything was checked when it was added, as `verify` would check it.
        return Model(tuple(operands), tuple(self._operations), tuple(self._inputs), outputs).mark_verified()

    def _operand(self, index: int, reader: str) -> Operand:
        if is_number(index) and 0 <= index < len(self._operands):
            return self._operands[index]
        raise InvalidModelError(
            f"{reader}: operand {index!r} is none of the {len(self._operands)} added so far; pass a number that an "
            "add_… method returned"
        )

    def _add(self, operand: Operand) -> int:
        if not isinstance(operand.name, str):
            raise InvalidModelError(f"an operand is named {operand.name!r}, expected a str")
        if operand.name in self._names:
            self._rename(operand.name)
        self._names.add(operand.name)
        self._operands.append(operand)
        return len(self._operands) - 1

    def _add_result(self, name: str, type_: OperandType) -> int:
        if name:
            return self._add(Operand(name, type_, Lifetime.TEMPORARY))
        name = self._free_name()
        index = self._made_up[name] = self._add(Operand(name, type_, Lifetime.TEMPORARY))
        return index

    def _free_name(self) -> str:
        number = max(self._next, len(self._operands))
        while f"%{number}" in self._names:
            number += 1
        self._next = number + 1
        return f"%{number}"

    def _rename(self, name: str) -> None:
        """Let an operand whose name was made up leave it to one that is called so."""
        index = self._made_up.pop(name, None)
        if index is None:
            raise InvalidModelError(f"the model has two operands named {name!r}; names must differ")
        operand, free_name = self._operands[index], self._free_name()
        self._operands[index] = Operand(free_name, operand.type, operand.lifetime, operand.value)
        self._names.add(free_name)
        self._made_up[free_name] = index


def _is_absent(index: int) -> bool:
    return is_number(index) and index == ABSENT
