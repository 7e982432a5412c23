"""The editor: a builder that starts from a finished model, and the place where passes change one.

Operands and operations keep their numbers while a model is edited, so that a pass can hold on to them; what was
removed and what nobody reads any more is left out when the new model is made. The model that the editor started
from is never touched. Each method costs what it changes, so a sweep with edits is linear in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat

from nnadapter.errors import InvalidModelError
from nnadapter.ir.derived import derived
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, DataType, Lifetime, Operand, OperandType, Quantisation, QuantisedType, freeze
from nnadapter.ir.operations import schema_of
from nnadapter.ir.quantised import result_types
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.traced_arrays import applied
from nnadapter.ir.verify import check_attributes, check_inputs

_Origins = tuple[object, ...]
"""Names of ONNX nodes, and tuples of the same form: merging is cheap, `_flat` makes one tuple of it at the end."""


class ModelEditor:
    """Edits one model during one forward sweep over its operations."""

    def __init__(self, model: Model) -> None:
        self.model = model
        """The model as it was."""
        self.changed = False
        """Something was edited."""
        self.types = set(model.operation_types)
        """Types of the operations that are or were there."""
        self._operands = list(model.operands)
        self._operations: list[Operation | None] = list(model.operations)
        self._origins: list[_Origins] = [operation.origins for operation in model.operations]
        self._placed: dict[int, list[int]] = {}
        self._position = 0
        self._alias: dict[int, int] = {}
        self._producer = dict(model.producer)
        self._consumers: dict[int, dict[int, None]] = {}
        """Of operands that were asked for, or edited; the model knows the others'."""
        self._outputs = set(model.outputs)
        self._numbers: dict[str, int] = {}
        self._unnamed: set[int] = set()
        self._derived: dict[tuple[int, Callable[[Array], Array]], int] = {}

    def sweep(self) -> Iterator[int]:
        """Go through the operations of the original model that are still there; what is added stands before each."""
        operations = self._operations
        for position in range(len(self.model.operations)):
            if operations[position] is not None:
                self._position = position
                if self._alias:
                    self._resolve(position)
                yield position
        self._position = len(self.model.operations)

    def operation(self, index: int) -> Operation:
        """The operation with that number; one that was removed cannot be asked for."""
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

    def is_output(self, operand: int) -> bool:
        """True for an operand that is a model output."""
        return operand in self._outputs

    def derived(self, operand: int, stem: str, function: Callable[[Array], Array]) -> int:
        """A constant made from another one; the same one if the same was asked before, `function` being the key.

        It is quantised as the other one is, if that is per tensor.
        """
        key = (operand, function)
        if key not in self._derived:
            value = self.value_of(operand)
            assert value is not None, "only constants can be computed with"
            quantisation = self.type_of(operand).quantisation
            kept = None if quantisation is None or quantisation.axis is not None else quantisation
            self._derived[key] = self.add_constant(stem, derived(function, value), kept)
        return self._derived[key]

    def add_constant(self, stem: str, value: Array, quantisation: Quantisation | None = None) -> int:
        """Add a constant whose name is `stem`, with a number where that is taken."""
        array = applied(freeze, value)
        type_ = OperandType(DataType(array.dtype.name), array.shape, quantisation=quantisation)
        return self._add(Operand(self._unique(stem), type_, Lifetime.CONSTANT, array))

    def add_operation(
        self,
        type_: str,
        inputs: Sequence[int],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        origins: Sequence[int],
        names: Sequence[str] = (),
        quantised: Sequence[QuantisedType | None] = (),
    ) -> tuple[int, ...]:
        """Add an operation before the one that the sweep stands at, checked and typed by the schema as in the builder.

        Args:
            type_: a row of the schema table.
            inputs: operands by role.
            attributes: by name; what is not given takes its default.
            origins: operations, removed or not, whose ONNX nodes it stands for, the one it is named for first.
            names: for the outputs, with a number where one is taken; the others are named when they replace something,
                or at the end.
            quantised: by output, data type and quantisation of those that are quantised; None, or left out, for others.

        Raises:
            InvalidModelError: unknown type, inputs or attributes that do not fit the schema.
        """
        schema = schema_of(type_)
        read = tuple(map(self._resolved, inputs))
        types = tuple(None if index == ABSENT else self._operands[index].type for index in read)
        check_inputs(schema, types)
        complete = check_attributes(schema, attributes or {})
        results = result_types(schema, types, complete, quantised)
        made = tuple(map(self._add_result, results, chain(map(self._unique, names), repeat(""))))
        index = len(self._operations)
        operation = Operation(type_, read, made, complete)
        self._operations.append(operation)
        self.types.add(type_)
        self._origins.append(tuple(self._origins[origin] for origin in origins))
        self._placed.setdefault(self._position, []).append(index)
        self._producer.update(dict.fromkeys(made, index))
        self._read(index, operation)
        self.changed = True
        return made

    def remove(self, operations: Sequence[int]) -> None:
        """Take operations out. What reads their outputs has to be removed or substituted as well."""
        for index in operations:
            operation = self.operation(index)
            for operand in operation.inputs:
                self._readers(operand).pop(index, None)
            for operand in operation.outputs:
                del self._producer[operand]
            self._operations[index] = None
        self.changed = True

    def replace(self, operations: Sequence[int], results: Sequence[int]) -> None:
        """Take `operations` out and let `results` stand for the outputs of the first one.

        Raises:
            InvalidModelError: `results` are not as many operands as that has outputs, or of other types.
        """
        outputs = self.operation(operations[0]).outputs
        self._check_results(operations[0], results)
        self.remove(operations)
        for old, new in zip(outputs, results, strict=True):
            self.substitute(old, new)

    def can_stand_for(self, old: int, new: int) -> bool:
        """True if `new` may be read in the place of `old`: a model output keeps its name and is made by something."""
        if not self.is_output(old):
            return True
        return self._operands[new].lifetime is Lifetime.TEMPORARY

    def substitute(self, old: int, new: int) -> None:
        """Let every later reader of `old`, and the model's outputs, have `new`, which takes the name over if it can.

        Raises:
            InvalidModelError: the data types or dimensions differ.
        """
        before, after = self._operands[old], self._operands[new]
        if self._resolved(new) == old:
            raise InvalidModelError(f"operand {before.name!r} is made from itself, expected operations in order")
        if (before.type.dtype, before.type.dimensions) != (after.type.dtype, after.type.dimensions):
            raise InvalidModelError(f"operand {before.name!r} is {before.type} and cannot become {after.type}")
        if new in self._unnamed or self.is_output(old):
            self._unnamed.discard(new)
            same = before.type.layout is after.type.layout
            # the type that was there may say how the operand is quantised, which no shape rule does
            self._operands[new] = Operand(before.name, before.type if same else after.type, before.lifetime)
        if self.is_output(old):
            self._outputs.discard(old)
            self._outputs.add(new)
        self._readers(new).update(self._readers(old))
        self._consumers[old] = {}
        self._alias[old] = new
        self.changed = True

    def adopt(self, operation: int, origins: Sequence[int]) -> None:
        """Let an operation also stand for the ONNX nodes of the operations `origins`, which have gone."""
        self._origins[operation] = (self._origins[operation], *(self._origins[origin] for origin in origins))

    def finish(self) -> Model:
        """The edited model, or the original one if nothing was changed."""
        if not self.changed:
            return self.model
        order = [index for index in self._order() if self._operations[index] is not None]
        if self._alias:
            for index in order:
                self._resolve(index)
        outputs = tuple(self._resolved(operand) for operand in self.model.outputs)
        used = {
            operand for index in order for operand in (*self.operation(index).inputs, *self.operation(index).outputs)
        }
        used.update(self.model.inputs, outputs)
        used.discard(ABSENT)
        kept = sorted(used)
        new = {operand: position for position, operand in enumerate(kept)}
        new[ABSENT] = ABSENT
        return Model(
            tuple(self._named(operand) for operand in kept),
            tuple(self._renumbered(index, new) for index in order),
            tuple(new[operand] for operand in self.model.inputs),
            tuple(new[operand] for operand in outputs),
        )

    def _check_results(self, operation: int, results: Sequence[int]) -> None:
        found = self.operation(operation)
        count = len(found.outputs)
        if not isinstance(results, Sequence) or len(results) != count:
            raise InvalidModelError(
                f"{found.type} is replaced by {results!r}, expected {count} operands, one for each of its outputs"
            )
        for result in results:
            if not isinstance(result, int) or not 0 <= result < len(self._operands):
                raise InvalidModelError(f"{found.type} is replaced by {result!r}, which is the number of no operand")

    def _order(self) -> Iterator[int]:
        for position in range(len(self.model.operations)):
            yield from self._placed.get(position, ())
            yield position
        yield from self._placed.get(len(self.model.operations), ())

    def _renumbered(self, index: int, new: Mapping[int, int]) -> Operation:
        old = self.operation(index)
        number = new.__getitem__
        inputs, outputs = tuple(map(number, old.inputs)), tuple(map(number, old.outputs))
        return Operation(old.type, inputs, outputs, old.attributes, _flat(self._origins[index]))

    def _named(self, index: int) -> Operand:
        operand = self._operands[index]
        if index not in self._unnamed:
            return operand
        return Operand(self._unique(f"%{index}"), operand.type, operand.lifetime)

    def _resolve(self, index: int) -> None:
        operation = self._operations[index]
        if operation is None or not self._alias or self._alias.keys().isdisjoint(operation.inputs):
            return
        inputs = tuple(map(self._resolved, operation.inputs))
        self._operations[index] = Operation(operation.type, inputs, operation.outputs, operation.attributes)

    def _resolved(self, operand: int) -> int:
        path = []
        while operand in self._alias:
            path.append(operand)
            operand = self._alias[operand]
        self._alias.update(dict.fromkeys(path, operand))
        return operand

    def _read(self, index: int, operation: Operation) -> None:
        for operand in operation.inputs:
            if operand != ABSENT:
                self._readers(operand)[index] = None

    def _readers(self, operand: int) -> dict[int, None]:
        found = self._consumers.get(operand)
        if found is None:
            found = self._consumers[operand] = dict.fromkeys(self.model.consumers.get(operand, ()))
        return found

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


def _flat(origins: _Origins) -> tuple[str, ...]:
    """The names in order, each once; tuples that occur twice are looked at once."""
    if len(origins) == 1 and type(origins[0]) is str:  # nearly always
        return origins  # type: ignore[return-value]
    if all(type(part) is str for part in origins):
        return tuple(dict.fromkeys(origins))  # type: ignore[arg-type]
    found: dict[str, None] = {}
    seen: set[int] = set()
    stack: list[object] = [origins]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            found[part] = None
        elif isinstance(part, tuple) and id(part) not in seen:
            seen.add(id(part))
            stack.extend(reversed(part))
    return tuple(found)
