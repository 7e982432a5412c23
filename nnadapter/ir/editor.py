"""Model editor: a builder that starts from a finished model, through which passes change it.

The editor: a builder that starts from a finished model, and the place where passes change one.

Operands and operations keep their numbers while a model is edited, so that a pass can hold on to them; what was
removed and what nobody reads any more is left out when the new model is made. The model that the editor started
from is never touched. Each method costs what it changes, so a sweep with edits is linear in the model, and one editor
serves passes that follow one another (`ir.editing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain, repeat

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
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.verification import inferred

Origins = tuple[object, ...]
"""Names, and tuples of names and tuples; `flattened` makes one tuple of it at the end."""


def flattened(origins: Origins) -> tuple[str, ...]:
    """Return the names in order, each once; tuples that occur twice are looked at once."""
    if len(origins) == 1 and type(origins[0]) is str:  # nearly always
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


class EditedModel:
    """One model as it stands after the edits so far. Operands and operations keep their numbers."""

    def __init__(self, model: Model) -> None:
        self.model = model
        """The model as it was."""
        self.changed = False
        """Something was edited."""
        self.types = model.operation_types
        """Types of the operations that are or were there."""
        self._operands = list(model.operands)
        self._operations: list[Operation | None] = list(model.operations)
        self._origins: dict[int, Origins] = {}
        """Of operations that were removed, added or adopted others; the others know their own."""
        self._sequence: Sequence[int] = range(len(model.operations))
        """Operations in their order, but for what was placed since."""
        self._is_settled = True
        """Nothing was placed or removed since."""
        self._placed: dict[int, list[int]] = {}
        """Operations that were added, by the place in the sequence that they stand before."""
        self._place_of: dict[int, int] = {}
        """The place of each of them."""
        self._places: Mapping[int, int] | None = None
        """The place in the sequence of each operation in it; None where nobody has asked."""
        self._position = 0
        self._alias: dict[int, int] = {}
        self._stale: set[int] = set()
        """Operations that may read an operand which another one stands for by now."""
        self._consumers: dict[int, dict[int, None]] = {}
        """Of operands that were asked for, or edited; the model knows the others'."""
        self._outputs = set(model.outputs)

    def order(self) -> Sequence[int]:
        """The numbers of the operations that are there, in an order in which they can run, to look at them.

        Whoever adds operations goes through a `sweep`, which says where they stand.
        """
        if self._is_settled:
            return self._sequence
        operations = self._operations
        return [index for index in self._merged() if operations[index] is not None]

    def operation(self, index: int) -> Operation:
        """The operation with that number; one that was removed cannot be asked for."""
        if index in self._stale:
            self._resolve(index)
        operation = self._operations[index]
        assert operation is not None, "the operation was removed"
        return operation

    def operand(self, index: int) -> Operand:
        """The operand with that number."""
        return self._operands[index]

    def type_of(self, index: int) -> OperandType:
        """The type of an operand."""
        return self._operands[index].type

    def value_of(self, index: int) -> Array | None:
        """The contents of a constant; None for any other operand and for `ABSENT`."""
        return None if index == ABSENT else self._operands[index].value

    def producer(self, operand: int) -> int | None:
        """The operation that makes the operand, or None for constants and model inputs."""
        return self._producer.get(operand)

    def consumers(self, operand: int) -> Mapping[int, None]:
        """The operations that read the operand, as the keys."""
        return self._readers(operand)

    def first_reader(self, operand: int) -> int | None:
        """The first operation in the order that reads the operand; None if none does."""
        return min(self._readers(operand), key=self._place, default=None)

    def reader_count(self, operand: int) -> int:
        """How many operations read the operand."""
        readers = self._consumers.get(operand)
        return len(self.model.consumers.get(operand, ()) if readers is None else readers)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The operands that are model outputs by now, in the model's order."""
        return tuple(map(self._resolved, self.model.outputs))

    def is_output(self, operand: int) -> bool:
        """True for an operand that is a model output."""
        return operand in self._outputs

    def _merged(self) -> Sequence[int]:
        """The sequence with what was placed, and with what was removed."""
        if not self._placed:
            return self._sequence
        merged: list[int] = []
        for position, index in enumerate(self._sequence):
            merged += self._placed.get(position, ())
            merged.append(index)
        merged += self._placed.get(len(self._sequence), ())
        return merged

    def _place(self, index: int) -> tuple[int, bool, int]:
        """What operations are in order by."""
        if index in self._place_of:
            return self._place_of[index], False, index
        if self._places is None:
            self._places = {operation_index: place for place, operation_index in enumerate(self._sequence)}
        return self._places[index], True, index

    def _resolve(self, index: int) -> None:
        """Let an operation read what stands for its inputs by now; once for all of them, as it may have very many."""
        self._stale.discard(index)
        operation = self._operations[index]
        if operation is not None:
            inputs = tuple(map(self._resolved, operation.inputs))
            self._operations[index] = Operation(
                operation.type, inputs, operation.outputs, operation.attributes, operation.origins
            )

    def _resolved(self, operand: int) -> int:
        if operand not in self._alias:
            return operand  # nearly always
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


class ModelEditor(EditedModel):
    """Edits one model during forward sweeps over its operations."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._numbers: dict[str, int] = {}
        self._unnamed: set[int] = set()
        self._derived: dict[tuple[int, Callable[[Array], Array]], int] = {}

    def sweep(self, types: Set[str] | None = None) -> Iterator[int]:
        """Go through the operations that are there; what is added stands before each, and waits for the next sweep.

        Args:
            types: of the operations to stop at; all if nothing is given.
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
        """A constant made from another one; the same one if the same was asked before, `function` being the key.

        It is quantized as the other one is, if that is per tensor.
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
        """Add a constant whose name is `stem`, with a number where that is taken."""
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
        """Add an operation before the one that the sweep stands at, checked and typed by the schema as in the builder.

        Args:
            type_: a row of the schema table.
            inputs: operands by role.
            attributes: by name; what is not given takes its default.
            origins: operations, removed or not, whose ONNX nodes it stands for, the one it is named for first.
            names: for the outputs, with a number where one is taken; the others are named when they replace something,
                or after the sweep.
            quantized: by output, data type and quantization of those that are quantized; None, or left out, for others.

        Raises:
            InvalidModelError: unknown type, inputs or attributes that do not fit the schema.
        """
        read = tuple(map(self._resolved, inputs))
        types = tuple(None if index == ABSENT else self._operands[index].type for index in read)
        complete, results = inferred(type_, types, attributes or {}, quantized)
        result_indices = tuple(map(self._add_result, results, chain(map(self._unique, names), repeat(""))))
        index = len(self._operations)
        operation = Operation(type_, read, result_indices, complete)
        self._operations.append(operation)
        if type_ not in self.types:
            self.types |= {type_}
        self._origins[index] = tuple(map(self._origins_of, origins))
        self._placed.setdefault(self._position, []).append(index)
        self._place_of[index] = self._position
        self._producer.update(dict.fromkeys(result_indices, index))
        self._read(index, operation)
        self._is_settled, self.changed = False, True
        return result_indices

    def remove(self, operations: Sequence[int]) -> None:
        """Take operations out. What reads their outputs has to be removed or substituted as well."""
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
        """Take `operations` out and let `results` stand for the outputs of the first one.

        Raises:
            InvalidModelError: `results` are not as many operands as that has outputs, or of other types.
        """
        outputs = self.operation(operations[0]).outputs
        self._check_results(operations[0], results)
        self.remove(operations)
        for output, result in zip(outputs, results, strict=True):
            self.substitute(output, result)

    def can_stand_for(self, original: int, replacement: int) -> bool:
        """True if `replacement` may be read in the place of `original`: a model output keeps name and producer."""
        if not self.is_output(original):
            return True
        return self._operands[replacement].lifetime is Lifetime.TEMPORARY

    def substitute(self, original: int, replacement: int) -> None:
        """Let later readers of `original`, and the model's outputs, have `replacement`, which takes the name if it can.

        Raises:
            InvalidModelError: the data types or dimensions differ.
        """
        operand, replacement_operand = self._operands[original], self._operands[replacement]
        if self._resolved(replacement) == original:
            raise InvalidModelError(f"operand {operand.name!r} is made from itself, expected operations in order")
        if (operand.type.dtype, operand.type.dimensions) != (
            replacement_operand.type.dtype,
            replacement_operand.type.dimensions,
        ):
            raise InvalidModelError(
                f"operand {operand.name!r} is {operand.type} and cannot become {replacement_operand.type}"
            )
        if replacement in self._unnamed or self.is_output(original):
            self._unnamed.discard(replacement)
            same = operand.type.layout is replacement_operand.type.layout
            # the type that was there may say how the operand is quantized, which no shape rule does
            self._operands[replacement] = Operand(
                operand.name, operand.type if same else replacement_operand.type, operand.lifetime
            )
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
        """Let an operation also stand for the ONNX nodes of the operations `origins`, which have gone."""
        self._origins[operation] = (self._origins_of(operation), *map(self._origins_of, origins))

    def finish(self) -> Model:
        """The edited model, or the original one if nothing was changed."""
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
                raise InvalidModelError(
                    f"{replaced_operation.type} is replaced by {result!r}, which is the number of no operand"
                )

    def _origins_of(self, index: int) -> Origins:
        origins = self._origins.get(index)
        return self.operation(index).origins if origins is None else origins

    def _name_results(self) -> None:
        """Give results a name that none was given and that took none over."""
        for index in sorted(self._unnamed):
            operand = self._operands[index]
            self._operands[index] = Operand(self._unique(f"%{index}"), operand.type, operand.lifetime)
        self._unnamed.clear()

    def _read(self, index: int, operation: Operation) -> None:
        for operand in operation.inputs:
            if operand != ABSENT:
                self._readers(operand)[index] = None

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
