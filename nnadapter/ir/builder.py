"""Model builder with type inference, and model editor for passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain, repeat
from typing import cast

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.derived import applied, derived
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import (
    Array,
    DataType,
    Lifetime,
    Operand,
    OperandType,
    Quantization,
    QuantizedType,
    dtype_name,
    freeze,
)
from nnadapter.ir.operand_checks import DTYPES, check_quantization_fields, checked_type, is_one_of
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.verification import Inferences, inferred


def _is_index(index: object) -> bool:
    return type(index) is int or (isinstance(index, (int, np.integer)) and not isinstance(index, bool))


def check_arguments(
    type_: object, inputs: object, attributes: object, *, outputs: object, origins: object, quantized: object
) -> None:
    """Check the Python types of arguments of `ModelBuilder.add_operation`. Raises InvalidModelError."""
    if not isinstance(type_, str):
        raise InvalidModelError(f"an operation's type is {type_!r}, expected a str such as 'CONV_2D'")
    if type(inputs) is not tuple and (isinstance(inputs, str) or not isinstance(inputs, Iterable)):
        raise InvalidModelError(f"{type_}: inputs are {inputs!r}, expected a list of operands")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise InvalidModelError(f"{type_}: attributes are {attributes!r}, expected a dict of values by name")
    _check_list(type_, "outputs", outputs, str)
    _check_list(type_, "origins", origins, str)
    if type(quantized) is tuple and not quantized:  # the common case
        return
    _check_list(type_, "quantized", quantized, (QuantizedType, type(None)))
    for position, result in enumerate(cast("Sequence[QuantizedType | None]", quantized)):
        if result is None:
            continue
        which = f"{type_}: output {position}"
        if not is_one_of(DTYPES, result.dtype):
            raise InvalidModelError(f"{which} is quantized as {result.dtype!r}, expected an integer data type")
        check_quantization_fields(which, result.quantization)


def _check_list(type_: str, name: str, entries: object, kind: type | tuple[type, ...]) -> None:
    if type(entries) is tuple and (not entries or (len(entries) == 1 and type(entries[0]) is kind)):  # the common case
        return
    if (
        isinstance(entries, str)
        or not isinstance(entries, Sequence)
        or not all(isinstance(entry, kind) for entry in entries)
    ):
        expected = "names" if kind is str else "QuantizedType, or None,"
        raise InvalidModelError(f"{type_}: {name} is {entries!r}, expected a list of {expected}")


def check_counts(type_: str, count: int, *, outputs: Sequence[str], quantized: Sequence[QuantizedType | None]) -> None:
    """Raise InvalidModelError if `outputs` or `quantized` has nonempty entries after the first `count`."""
    for name, entries in (("outputs", outputs), ("quantized", quantized)):
        if len(entries) > count and any(entries[count:]):
            extra = list(entries[count:])
            raise InvalidModelError(
                f"{type_}: {name} has {len(entries)} entries, expected at most {count}; leave out {extra}"
            )


class ModelBuilder:
    """Builder of one model. The `add_…` methods return operand indices.

    Source: NNAdapterModel_addOperand, _addOperation, _identifyInputsAndOutputs, _finish.
    """

    def __init__(self) -> None:
        self._operands: list[Operand] = []
        self._operations: list[Operation] = []
        self._inputs: list[int] = []
        self._names: set[str] = set()
        self._made_up: dict[str, int] = {}
        """Generated operand name -> operand, which is renamed if a later operand needs the name."""
        self._next = 0
        self._inferences = Inferences()

    def type_of(self, operand: int) -> OperandType:
        """Return the type of an operand."""
        return self._operand(operand).type

    def value_of(self, operand: int) -> Array | None:
        """Return the contents of a constant; None for other operands."""
        return self._operand(operand).value

    def add_input(self, name: str, type_: OperandType) -> int:
        """Add a model input. Raises InvalidModelError for a duplicate name or an invalid type."""
        shared_type = self._inferences.shared(checked_type(name, type_))
        index = self._add(Operand(name, shared_type, Lifetime.MODEL_INPUT))
        self._inputs.append(index)
        return index

    def add_constant(self, name: str, value: Array, quantization: Quantization | None = None) -> int:
        """Add a constant, which shares the memory of `value` if contiguous, and is otherwise a copy.

        Raises InvalidModelError for duplicate names and invalid values.
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
        """Add an operation; return its outputs, with types from the schema's shape rule.

        Args:
            type_: a row of the schema table, such as `CONV_2D`.
            inputs: operands by role; `ABSENT` for an omitted one before the last.
            attributes: by name; omitted ones take their defaults.
            outputs: names; generated if missing or empty.
            origins: names of the implemented ONNX nodes.
            quantized: data type and quantization by output; None if not quantized.

        Raises:
            InvalidModelError: unknown type or operands, or a contradiction to the schema.
        """
        check_arguments(type_, inputs, attributes, outputs=outputs, origins=origins, quantized=quantized)
        inputs = tuple(inputs)
        types = [
            None if _is_index(index) and index == ABSENT else self._operand(index, f"{type_}: ").type
            for index in inputs
        ]
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
        """Return the current state, for `undo`."""
        return len(self._operands), len(self._operations)

    def undo(self, mark: tuple[int, int]) -> None:
        """Remove all operands and operations that were added after the call of `mark`."""
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
        """Return the model with these outputs, or raise InvalidModelError. Do not use the builder afterwards."""
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            raise InvalidModelError(f"model outputs are {outputs!r}, expected a list of operands")
        outputs = tuple(outputs)
        for index in outputs:
            if not (_is_index(index) and 0 <= index < len(self._operands)):
                raise InvalidModelError(
                    f"model output {index!r} is not one of the {len(self._operands)} operands of the model"
                )
        operands = list(self._operands)
        for index in outputs:
            operand = operands[index]
            if operand.lifetime is Lifetime.TEMPORARY:
                operands[index] = Operand(operand.name, operand.type, Lifetime.MODEL_OUTPUT)
        # Verified: each `add_…` method made the checks of `verify`.
        return Model(tuple(operands), tuple(self._operations), tuple(self._inputs), outputs).mark_verified()

    def _operand(self, index: int, reader: str = "") -> Operand:
        if _is_index(index) and 0 <= index < len(self._operands):
            return self._operands[index]
        raise InvalidModelError(
            f"{reader}operand {index!r} is not one of the {len(self._operands)} added so far; pass a number that an "
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
        index = self._made_up.pop(name, None)
        if index is None:
            raise InvalidModelError(f"the model has two operands named {name!r}; names must differ")
        operand, free_name = self._operands[index], self._free_name()
        self._operands[index] = Operand(free_name, operand.type, operand.lifetime, operand.value)
        self._names.add(free_name)
        self._made_up[free_name] = index


Origins = tuple[object, ...]
"""Names of ONNX nodes, possibly nested."""


def flattened(origins: Origins) -> tuple[str, ...]:
    """Return the distinct names in nested tuples, in order."""
    if len(origins) == 1 and type(origins[0]) is str:  # the common case
        return origins  # type: ignore[return-value]
    if all(type(part) is str for part in origins):
        return tuple(dict.fromkeys(origins))  # type: ignore[arg-type]
    names: dict[str, None] = {}
    visited_ids: set[int] = set()
    stack: list[object] = [origins]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            names[part] = None
        elif isinstance(part, tuple) and id(part) not in visited_ids:
            visited_ids.add(id(part))
            stack.extend(reversed(part))
    return tuple(names)


class ModelEditor:
    """Editor of one model, for forward sweeps over operations. Indices never change."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.changed = False
        self.types = model.operation_types
        """Operation types of the model, including removed ones."""
        self._operands = list(model.operands)
        self._operations: list[Operation | None] = list(model.operations)
        self._origins: dict[int, Origins] = {}
        """Operation -> changed names of its ONNX nodes."""
        self._sequence: Sequence[int] = range(len(model.operations))
        """Operations at the start of the current sweep, in order."""
        self._is_settled = True
        """True if nothing was added or removed since the sweep started."""
        self._placed: dict[int, list[int]] = {}
        """Index in `_sequence` -> operations that were added before it."""
        self._place_of: dict[int, int] = {}
        self._places: Mapping[int, int] | None = None
        """Operation -> index in `_sequence`; None until needed."""
        self._position = 0
        self._alias: dict[int, int] = {}
        self._stale: set[int] = set()
        """Operations whose inputs may contain substituted operands."""
        self._consumers: dict[int, dict[int, None]] = {}
        """Operand -> operations that read it, if that changed."""
        self._outputs = set(model.outputs)
        self._numbers: dict[str, int] = {}
        """Requested name -> latest number appended to it."""
        self._unnamed: set[int] = set()
        self._derived: dict[tuple[int, Callable[[Array], Array]], int] = {}

    def order(self) -> Sequence[int]:
        """Return the indices of current operations, in order. `sweep` permits additions during the iteration."""
        if self._is_settled:
            return self._sequence
        operations = self._operations
        return [index for index in self._merged() if operations[index] is not None]

    def operation(self, index: int) -> Operation:
        if index in self._stale:
            self._resolve(index)
        operation = self._operations[index]
        assert operation is not None, "the operation was removed"
        return operation

    def operand(self, index: int) -> Operand:
        return self._operands[index]

    def type_of(self, index: int) -> OperandType:
        return self._operands[index].type

    def value_of(self, index: int) -> Array | None:
        return None if index == ABSENT else self._operands[index].value

    def producer(self, operand: int) -> int | None:
        return self._producer.get(operand)

    def consumers(self, operand: int) -> Mapping[int, None]:
        return self._readers(operand)

    def first_reader(self, operand: int) -> int | None:
        return min(self._readers(operand), key=self._place, default=None)

    def reader_count(self, operand: int) -> int:
        readers = self._consumers.get(operand)
        return len(self.model.consumers.get(operand, ()) if readers is None else readers)

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(map(self._resolved, self.model.outputs))

    def is_output(self, operand: int) -> bool:
        return operand in self._outputs

    def sweep(self, types: Set[str] | None = None) -> Iterator[int]:
        """Yield the indices of operations in order, only of `types` if set.

        Operations that are added or removed during the iteration are skipped.
        """
        if types is not None and types.isdisjoint(self.types):
            return
        self._name_results()
        if not self._is_settled:
            self._sequence, self._is_settled = self.order(), True
            self._placed, self._place_of, self._places = {}, {}, None
        sequence = self._sequence
        operations = self._operations
        for self._position, index in enumerate(sequence):
            operation = operations[index]
            if operation is not None and (types is None or operation.type in types):
                yield index
        self._position = len(sequence)

    def derived(self, operand: int, stem: str, function: Callable[[Array], Array]) -> int:
        """Add the constant `function(contents of operand)` unless it exists, and return its index.

        `stem` is its name, numbered if taken. The constant inherits the operand's quantization if that is per tensor.
        """
        key = (operand, function)
        if key not in self._derived:
            value = self.value_of(operand)
            assert value is not None, "only constants can be computed with"
            quantization = self.type_of(operand).quantization
            result_quantization = None if quantization is None or quantization.axis is not None else quantization
            self._derived[key] = self.add_constant(stem, derived(function, value), result_quantization)
        return self._derived[key]

    def add_constant(self, stem: str, value: Array, quantization: Quantization | None = None) -> int:
        """Add a constant and return its index. `stem` is its name, numbered if taken."""
        array = applied(freeze, value)
        type_ = OperandType(DataType(dtype_name(array.dtype)), array.shape, quantization=quantization)
        return self._add(Operand(self._unique(stem), type_, Lifetime.CONSTANT, array))

    def add_operation(
        self,
        type_: str,
        inputs: Sequence[int],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        origins: Sequence[int],
        names: Sequence[str] = (),
        quantized: Sequence[QuantizedType | None] = (),
    ) -> tuple[int, ...]:
        """Add an operation before the current one of the sweep. Return its outputs; see `ModelBuilder.add_operation`.

        `origins` are operations, possibly removed, and the new one implements their ONNX nodes. `names` are for the
        first
        outputs, numbered if not unique. An output without a name gets the name of the operand that it replaces. Raises
        InvalidModelError.
        """
        read = tuple(map(self._resolved, inputs))
        types = tuple(None if index == ABSENT else self._operands[index].type for index in read)
        complete, results = inferred(type_, types, attributes or {}, quantized)
        result_indices = tuple(map(self._add_result, results, chain(map(self._unique, names), repeat(""))))
        index = len(self._operations)
        self._operations.append(Operation(type_, read, result_indices, complete))
        if type_ not in self.types:
            self.types |= {type_}
        self._origins[index] = tuple(map(self._origins_of, origins))
        self._placed.setdefault(self._position, []).append(index)
        self._place_of[index] = self._position
        self._producer.update(dict.fromkeys(result_indices, index))
        for operand in read:
            if operand != ABSENT:
                self._readers(operand)[index] = None
        self._is_settled, self.changed = False, True
        return result_indices

    def remove(self, operations: Sequence[int]) -> None:
        """Remove operations. The caller must remove or substitute all readers."""
        for index in operations:
            operation = self.operation(index)
            for operand in operation.inputs:
                self._readers(operand).pop(index, None)
            for operand in operation.outputs:
                del self._producer[operand]
            self._origins.setdefault(index, operation.origins)
            self._operations[index] = None
        self._is_settled, self.changed = False, True

    def replace(self, operations: Sequence[int], results: Sequence[int]) -> None:
        """Remove `operations`; substitute `results` for the outputs of the first. Raises InvalidModelError."""
        outputs = self.operation(operations[0]).outputs
        self._check_results(operations[0], results)
        self.remove(operations)
        for output, result in zip(outputs, results, strict=True):
            self.substitute(output, result)

    def can_stand_for(self, original: int, replacement: int) -> bool:
        """Return whether `replacement` can replace `original`: only a temporary can replace a model output."""
        if not self.is_output(original):
            return True
        return self._operands[replacement].lifetime is Lifetime.TEMPORARY

    def substitute(self, original: int, replacement: int) -> None:
        """Redirect readers and model outputs from `original` to `replacement`.

        The replacement inherits the name if it is unnamed or `original` is a model output. Raises InvalidModelError if
        data types or dimensions differ.
        """
        operand, replacement_operand = self._operands[original], self._operands[replacement]
        if self._resolved(replacement) == original:
            raise InvalidModelError(f"operand {operand.name!r} depends on itself, expected operations in order")
        type_, new_type = operand.type, replacement_operand.type
        if type_.dtype is not new_type.dtype or type_.dimensions != new_type.dimensions:
            raise InvalidModelError(
                f"operand {operand.name!r} is {type_} and its replacement is {new_type}, expected the same data type "
                "and dimensions"
            )
        if replacement in self._unnamed or self.is_output(original):
            self._unnamed.discard(replacement)
            # the original type may be quantized, which no shape rule infers
            kept_type = type_ if type_.layout is new_type.layout else new_type
            self._operands[replacement] = Operand(operand.name, kept_type, operand.lifetime)
        if self.is_output(original):
            self._outputs.discard(original)
            self._outputs.add(replacement)
        readers = self._readers(original)
        self._stale.update(readers)
        self._readers(replacement).update(readers)
        self._consumers[original] = {}
        self._alias[original] = replacement
        self.changed = True

    def adopt(self, operation: int, origins: Sequence[int]) -> None:
        """Add the ONNX nodes of the operations `origins`, possibly removed, to the nodes of `operation`."""
        self._origins[operation] = (self._origins_of(operation), *map(self._origins_of, origins))

    def finish(self) -> Model:
        """Return the edited model, or the original if unchanged."""
        if not self.changed:
            return self.model
        self._name_results()
        operations = [(self.operation(index), self._origins.get(index)) for index in self.order()]
        outputs = self.outputs
        live_operands = set(chain(self.model.inputs, outputs))
        for operation, _ in operations:
            live_operands.update(operation.inputs)
            live_operands.update(operation.outputs)
        live_operands.discard(ABSENT)
        operand_order = sorted(live_operands)
        renumbering = {operand: position for position, operand in enumerate(operand_order)}
        renumbering[ABSENT] = ABSENT
        number = renumbering.__getitem__
        return Model(
            tuple(map(self._operands.__getitem__, operand_order)),
            tuple(op.renumbered(number, None if origins is None else flattened(origins)) for op, origins in operations),
            tuple(renumbering[operand] for operand in self.model.inputs),
            tuple(renumbering[operand] for operand in outputs),
        )

    def _check_results(self, operation: int, results: Sequence[int]) -> None:
        replaced_operation = self.operation(operation)
        count = len(replaced_operation.outputs)
        if not isinstance(results, Sequence) or len(results) != count:
            raise InvalidModelError(
                f"{replaced_operation.type} is replaced by {results!r}, expected {count} operands, "
                "one for each of its outputs"
            )
        for result in results:
            if not isinstance(result, int) or not 0 <= result < len(self._operands):
                raise InvalidModelError(f"{replaced_operation.type} is replaced by {result!r}, which is not an operand")

    def _origins_of(self, index: int) -> Origins:
        origins = self._origins.get(index)
        return self.operation(index).origins if origins is None else origins

    def _name_results(self) -> None:
        for index in sorted(self._unnamed):
            operand = self._operands[index]
            self._operands[index] = Operand(self._unique(f"%{index}"), operand.type, operand.lifetime)
        self._unnamed.clear()

    @cached_property
    def _names(self) -> set[str]:
        return {operand.name for operand in self.model.operands}

    def _add(self, operand: Operand) -> int:
        self._operands.append(operand)
        return len(self._operands) - 1

    def _add_result(self, type_: OperandType, name: str) -> int:
        index = self._add(Operand(name, type_, Lifetime.TEMPORARY))
        if not name:
            self._unnamed.add(index)
        return index

    def _unique(self, stem: str) -> str:
        name = stem
        while name in self._names:
            self._numbers[stem] = self._numbers.get(stem, 1) + 1
            name = f"{stem}.{self._numbers[stem]}"
        self._names.add(name)
        return name

    def _merged(self) -> Sequence[int]:
        if not self._placed:
            return self._sequence
        merged: list[int] = []
        for position, index in enumerate(self._sequence):
            merged += self._placed.get(position, ())
            merged.append(index)
        merged += self._placed.get(len(self._sequence), ())
        return merged

    def _place(self, index: int) -> tuple[int, bool, int]:
        if index in self._place_of:
            return self._place_of[index], False, index
        if self._places is None:
            self._places = {operation_index: place for place, operation_index in enumerate(self._sequence)}
        return self._places[index], True, index

    def _resolve(self, index: int) -> None:
        self._stale.discard(index)
        operation = self._operations[index]
        if operation is not None:
            inputs = tuple(map(self._resolved, operation.inputs))
            self._operations[index] = Operation(
                operation.type, inputs, operation.outputs, operation.attributes, operation.origins
            )

    def _resolved(self, operand: int) -> int:
        if operand not in self._alias:
            return operand  # the common case
        path = []
        while operand in self._alias:
            path.append(operand)
            operand = self._alias[operand]
        self._alias.update(dict.fromkeys(path, operand))
        return operand

    def _readers(self, operand: int) -> dict[int, None]:
        readers = self._consumers.get(operand)
        if readers is None:
            readers = self._consumers[operand] = dict.fromkeys(self.model.consumers.get(operand, ()))
        return readers

    @cached_property
    def _producer(self) -> dict[int, int]:
        return dict(self.model.producer)
