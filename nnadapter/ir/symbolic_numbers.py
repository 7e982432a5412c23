"""Symbolic numbers: sizes that record in a trace how they were computed, and guards."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, product
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from nnadapter.records import dataclass

Function = Callable[..., Any]


def to_integer(value: float, _: object) -> int:
    """Truncate to an integer."""
    return int(value)


def to_float32(value: float, _: object) -> float:
    """Round to float32."""
    return float(np.float32(value))


def to_float64(value: float, _: object) -> float:
    """Convert to float."""
    return float(value)


def quotient_of_integers(first: int, second: int) -> int:
    """Divide, rounding towards zero as in C."""
    quotient = abs(first) // abs(second)
    return quotient if (first < 0) == (second < 0) else -quotient


def quotient_of_sizes(size: float, dimension: float) -> float:
    """Divide in float32, the precision of Resize scales."""
    return float(np.float32(size) / np.float32(dimension))


def scaled_size(size: int, scale: float) -> int:
    """Return floor(size * scale) in float32. Source: ONNX Resize-11."""
    return int(np.floor(np.float32(size) * np.float32(scale)))


def floor_of(value: float, _: object) -> float:
    """Return the floor, as a float."""
    return float(math.floor(value))


def ceil_of(value: float, _: object) -> float:
    """Return the ceiling, as a float."""
    return float(math.ceil(value))


def rounded_of(value: float, _: object) -> float:
    """Round half to even, as a float."""
    return float(round(value))


def root_of(value: float, _: object) -> float:
    """Return the square root."""
    return math.sqrt(value)


def _rounded(function: Function) -> Function:
    def rounded(first: float, second: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(np.float32(first), np.float32(second)))

    return rounded


IN_FLOAT32: Mapping[Function, Function] = MappingProxyType(
    {
        function: _rounded(function)
        for function in (operator.add, operator.sub, operator.mul, operator.truediv, max, min)
    }
)

UNARY: Mapping[str, Function] = MappingProxyType(
    {"neg": operator.neg, "abs": abs, "floor": math.floor, "ceil": math.ceil}
)
"""Unary functions, by name in files."""
BINARY: Mapping[str, Function] = MappingProxyType(
    {
        **{
            name: getattr(operator, name)
            for name in (
                "add", "sub", "mul", "floordiv", "truediv", "mod", "eq", "ne", "lt", "le", "gt", "ge",
            )
        },
        **{f"{function.__name__}.float32": rounded for function, rounded in IN_FLOAT32.items()},
        **{
            function.__name__: function
            for function in (
                max, min, to_integer, to_float32, to_float64, quotient_of_integers, quotient_of_sizes, scaled_size,
                floor_of, ceil_of, rounded_of, root_of,
            )
        },
    }
)  # fmt: skip


Step = tuple[Callable[..., Any], int, int]
"""A function and the indices of its operands; the second is -1 for a unary function."""
SlotReader = Callable[[Sequence[Any]], tuple[Any, ...]]
_NONE = -1
_EQUALITIES = ((operator.eq, True), (operator.ne, False))
_NEUTRAL: Mapping[Callable[..., Any], tuple[int, tuple[int, ...]]] = MappingProxyType(
    {operator.add: (0, (0, 1)), operator.sub: (0, (1,)), operator.mul: (1, (0, 1)), operator.floordiv: (1, (1,))}
)
"""Function -> neutral number, and the positions of operands at which it is neutral."""


class Constant:
    """Step that always returns the same number."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _: Any) -> Any:
        return self.value


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Simplified trace. Its list of values starts with variables, followed by constants and the results of steps."""

    constants: Sequence[Any]
    steps: Sequence[Step]
    ends: Sequence[tuple[Callable[..., Any], Sequence[SlotReader]]]
    """Steps whose results no other step reads. They are grouped by function, and one `map` computes each group."""
    checked: SlotReader
    expected: SlotReader
    every: SlotReader
    constant_flags: Sequence[bool]
    representatives: Sequence[int]
    """For each number, the first number that is equal under the guards, possibly itself."""

    def __call__(self, variables: Sequence[int]) -> tuple[Any, ...] | None:
        """Return the values of all numbers for these sizes; None if a guard fails or a computation raises."""
        values: list[Any] = [*variables, *self.constants]
        try:
            compute_steps(self.steps, values)
            for function, operands in self.ends:
                values.extend(map(function, *[take(values) for take in operands]))
        except (ArithmeticError, ValueError):
            return None
        return self.every(values) if self.checked(values) == self.expected(values) else None


def compute_steps(steps: Sequence[Step], values: list[Any]) -> None:
    """Append the results of steps to `values`, which the steps read. Raises what their functions raise."""
    for function, first, second in steps:
        values.append(function(values[first]) if second < 0 else function(values[first], values[second]))


def replay_of(variables: int, steps: Sequence[Step], answers: Mapping[int, Any], values: Sequence[Any]) -> Replay:
    """Simplify a trace with guards `answers` and the numbers `values` at the traced sizes."""
    return _Simplifier(variables, steps, answers, values).replay()


class _Simplifier:
    """Common subexpression elimination and constant folding of a trace, given its guards.

    Constants have negative slots until `_final` assigns others.
    """

    def __init__(
        self, variables: int, steps: Sequence[Step], answers: Mapping[int, Any], values: Sequence[Any]
    ) -> None:
        self._variables, self._steps, self._answers, self._values = variables, steps, answers, values
        self._constants: list[Any] = []
        self._constant_slots: dict[object, int] = {}
        self._first = list(range(len(values)))
        """Union-find: number -> an earlier equal number, or itself."""
        self._sums = self._sums_of_whole_numbers()
        """Representative number of a class in `_first` -> operand pairs of the sums that equal it."""
        self._following: list[tuple[int, int]] = []
        """Equalities that guards imply, except those that others imply."""
        self._fixed: dict[int, int] = {}
        self._own: list[int] = []
        self._made: dict[Step, int] = {}
        self._checks: dict[tuple[int, int], None] = {}
        self._places: dict[int, int] = {}

    def replay(self) -> Replay:
        for number, answer in self._answers.items():
            self._join(number, answer)
        for number in range(len(self._values)):
            self._own.append(number if number < self._variables else self._slot(number))
        for number, answer in self._answers.items():
            self._check(number, answer)
        self._checks.update(dict.fromkeys((self._own[first], self._own[other]) for first, other in self._following))
        every = [self._answer_slot(number) for number in range(len(self._values))]
        steps, ends = self._ordered()
        slots, firsts = list(map(self._final, every)), dict[int, int]()
        checks = [(self._final(first), self._final(other)) for first, other in _joining(self._checks)]
        return Replay(
            tuple(self._constants),
            steps,
            ends,
            slot_reader([first for first, _ in checks]),
            slot_reader([other for _, other in checks]),
            slot_reader(slots),
            [self._variables <= slot < self._variables + len(self._constants) for slot in slots],
            [firsts.setdefault(slot, number) for number, slot in enumerate(slots)],
        )

    def _ordered(self) -> tuple[list[Step], list[tuple[Callable[..., Any], list[SlotReader]]]]:
        """Return the steps whose results other steps read, and the remaining steps by function."""
        read = {operand for _, first, second in self._made for operand in (first, second)}
        last: dict[tuple[object, bool], list[tuple[Step, int]]] = {}
        for step, slot in self._made.items():
            if slot not in read:
                last.setdefault((step[0], step[2] == _NONE), []).append((step, slot))
        first = [(step, slot) for step, slot in self._made.items() if slot in read]
        for _, slot in chain(first, *last.values()):
            self._places[slot] = self._variables + len(self._constants) + len(self._places)
        steps = [(function, self._final(operand), self._final(other)) for (function, operand, other), _ in first]
        ends = []
        for (_, is_unary), group in last.items():
            (function, *_), *columns = zip(*(step for step, _ in group), strict=True)
            operands = columns[:1] if is_unary else columns
            ends.append((function, [slot_reader(list(map(self._final, column))) for column in operands]))
        return steps, ends

    def _join(self, number: int, answer: Any) -> None:
        equal = self._equal(number, answer)
        if equal is not None:
            self._unite(*equal)
        elif type(answer) is int:
            self._fixed.setdefault(self._root(number), self._constant(answer))

    def _equal(self, number: int, answer: Any) -> tuple[int, int] | None:
        if number < self._variables:
            return None
        function, first, second = self._steps[number - self._variables]
        if (function, answer) not in _EQUALITIES:
            return None
        return (first, second) if type(self._values[first]) is type(self._values[second]) is int else None

    def _unite(self, member: int, other: int) -> None:
        pending = [(member, other)]
        while pending:
            member, other = pending.pop()
            first, second = sorted((self._root(member), self._root(other)))
            if first == second:
                continue
            self._following.append((member, other))
            self._first[second] = first
            for number in (member, other, second):
                if number in self._fixed:
                    self._fixed.setdefault(first, self._fixed[number])
                elif number >= self._variables and isinstance(self._steps[number - self._variables][0], Constant):
                    self._fixed.setdefault(first, self._constant(self._values[number]))
            pending += self._other_parts(first, second)

    def _other_parts(self, first: int, second: int) -> list[tuple[int, int]]:
        """Merge the sums of two equal numbers. Return the equalities that follow: x + a == x + b implies a == b."""
        sums, more = self._sums.get(first, []), self._sums.pop(second, [])
        self._sums[first] = [*sums, *more]
        return [
            (terms[1 - place], other[1 - other_place])
            for terms, other in product(sums, more)
            for place, other_place in product((0, 1), repeat=2)
            if terms[place] == other[other_place]
        ]

    def _sums_of_whole_numbers(self) -> dict[int, list[tuple[int, int]]]:
        sums: dict[int, list[tuple[int, int]]] = {}
        for number, (function, first, second) in enumerate(self._steps, self._variables):
            if function is operator.add and type(self._values[first]) is type(self._values[second]) is int:
                sums[number] = [(self._without_zeros(first), self._without_zeros(second))]
        return sums

    def _without_zeros(self, number: int) -> int:
        while number >= self._variables:
            function, *operands = self._steps[number - self._variables]
            if function is not operator.add:
                break
            nonzero_operands = [operand for operand in operands if not self._is_zero(operand)]
            if len(nonzero_operands) != 1 or type(self._values[nonzero_operands[0]]) is not int:
                break
            number = nonzero_operands[0]
        return number

    def _is_zero(self, number: int) -> bool:
        function = self._steps[number - self._variables][0] if number >= self._variables else None
        return isinstance(function, Constant) and exactly(function.value) == (int, 0)

    def _root(self, number: int) -> int:
        while self._first[number] != number:
            number = self._first[number]
        return number

    def _slot_of(self, number: int) -> int:
        root = self._root(number)
        return self._fixed.get(root, self._own[root])

    def _slot(self, number: int) -> int:
        function, first, second = self._steps[number - self._variables]
        if isinstance(function, Constant):
            return self._constant(function.value)
        if self._equal(number, self._answers.get(number)) is not None:
            return self._constant(self._answers[number])  # the guard checks the equality itself
        operands = [self._slot_of(argument) for argument in (first, second) if argument >= 0]
        if all(operand < _NONE for operand in operands):
            return self._constant(self._values[number])
        left_alone = self._unchanged_operand(function, operands, number)
        if left_alone is not None:
            return left_alone
        step = (function, operands[0], operands[1] if second >= 0 else _NONE)
        return self._made.setdefault(step, self._variables + len(self._made))

    def _unchanged_operand(self, function: Callable[..., Any], operands: Sequence[int], number: int) -> int | None:
        neutral, places = _NEUTRAL.get(function, (None, ()))
        if neutral is None or type(self._values[number]) is not int:
            return None
        slot = self._constant_slots.get((int, neutral))
        return next((operands[1 - place] for place in places if operands[place] == slot), None)

    def _check(self, number: int, answer: Any) -> None:
        equal = self._equal(number, answer)
        first, other = (number, None) if equal is None else equal
        self._checks[self._own[first], self._constant(answer) if other is None else self._own[other]] = None
        if type(answer) is float and answer == 0:  # 0.0 == -0.0, but their quotients differ
            sign = self._made.setdefault((_sign, self._own[first], _NONE), self._variables + len(self._made))
            self._checks[sign, self._constant(_sign(answer))] = None

    def _answer_slot(self, number: int) -> int:
        return self._constant(self._answers[number]) if number in self._answers else self._slot_of(number)

    def _constant(self, value: Any) -> int:
        slot = self._constant_slots.setdefault(exactly(value), _NONE - 1 - len(self._constants))
        if slot == _NONE - 1 - len(self._constants):
            self._constants.append(value)
        return slot

    def _final(self, slot: int) -> int:
        if slot < _NONE:
            return self._variables + _NONE - 1 - slot
        return self._places.get(slot, slot)


def _sign(number: float) -> float:
    return math.copysign(1.0, number)


def _joining(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    roots: dict[int, int] = {}

    def root(slot: int) -> int:
        while (above := roots.get(slot, slot)) != slot:
            roots[slot] = slot = roots.get(above, above)
        return slot

    joining = []
    for pair in pairs:
        first_root, other = map(root, pair)
        if first_root != other:
            roots[other] = first_root
            joining.append(pair)
    return joining


def exactly(number: object) -> object:
    """Return a key that differs for 1 and 1.0 and for 0.0 and -0.0, but not for NaNs."""
    return repr(number) if isinstance(number, float) else (type(number), number)


def slot_reader(slots: Sequence[int]) -> SlotReader:
    """Return a function that reads these slots of a sequence as a tuple."""
    if len(slots) > 1:
        return operator.itemgetter(*slots)
    return lambda values: tuple([values[slot] for slot in slots])


_PLAIN = (int, float)
_UNTRACED = frozenset((int, float, bool, str))


class SymbolicTrace:
    """Variables, steps and guards of a computation with sizes. Its numbers are indexed, variables first."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._variables = 0
        self._steps: list[Step] = []
        self._known: dict[object, int] = {}
        self._answers: dict[int, Any] = {}
        self._replay: tuple[int, int, Replay] | None = None
        """Counts of steps and guards, and the trace simplified for them."""

    @classmethod
    def of(cls, variables: Sequence[int], steps: Sequence[Step], answers: Mapping[int, Any]) -> SymbolicTrace:
        """Rebuild a trace. Raises ArithmeticError, ValueError or TypeError if a step fails."""
        trace = cls()
        for variable in variables:
            trace.variable(variable)
        for function, first, second in steps:
            arguments = [trace._values[number] for number in (first, second) if number >= 0]
            value = function.value if isinstance(function, Constant) else function(*arguments)
            key = exactly(value) if isinstance(function, Constant) else (function, first, second)
            trace._known.setdefault(key, trace._add((function, first, second), value))
        trace._answers.update(answers)
        return trace

    def __reduce__(
        self,
    ) -> tuple[Callable[..., SymbolicTrace], tuple[Sequence[int], Sequence[Step], Mapping[int, Any]]]:
        return SymbolicTrace.of, (self.variables, self.steps, dict(self._answers))

    @property
    def variables(self) -> Sequence[int]:
        return tuple(self._values[: self._variables])

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def steps(self) -> Sequence[Step]:
        return tuple(self._steps)

    @property
    def answers(self) -> Mapping[int, Any]:
        """Guards: symbolic number -> required value."""
        return MappingProxyType(self._answers)

    def variable(self, value: int) -> SymbolicNumber:
        """Add an input size. All input sizes must precede the first step."""
        assert not self._steps, "variables come before everything that is made of them"
        self._variables += 1
        return SymbolicNumber(self, self._add(None, value))

    def replay(self, variables: Sequence[int]) -> tuple[Any, ...] | None:
        assert len(variables) == self._variables, "a replay needs every variable"
        return self._shortened()(variables)

    def representative(self, number: int) -> int:
        return self._shortened().representatives[number]

    def is_constant(self, number: int) -> bool:
        return self._shortened().constant_flags[number]

    def apply(self, function: Callable[..., Any], first: Any, second: Any = None) -> SymbolicNumber:
        numbers = self._number(first), -1 if second is None else self._number(second)
        key = (function, *numbers)
        result_number = self._known.get(key)
        if result_number is None:
            arguments = [self._values[number] for number in numbers if number >= 0]
            result_number = self._known[key] = self._add((function, *numbers), function(*arguments))
        return SymbolicNumber(self, result_number)

    def guard(self, number: SymbolicNumber) -> Any:
        """Return the value of a number, and guard on it, so that replays must have the same value."""
        value = self._values[number.number]
        self._answers.setdefault(number.number, value)
        return value

    def rollback_guards(self, answer_count: int) -> Mapping[int, Any]:
        """Remove and return the guards after the first `answer_count`. Nothing may depend on them."""
        forgotten = dict(list(self._answers.items())[answer_count:])
        for number in forgotten:
            del self._answers[number]
        self._replay = None
        return forgotten

    def restore_guards(self, answers: Mapping[int, Any]) -> None:
        for number, answer in answers.items():
            self._answers.setdefault(number, answer)

    def hint(self, number: int) -> Any:
        return self._values[number]

    def _shortened(self) -> Replay:
        counts = len(self._steps), len(self._answers)
        if self._replay is None or self._replay[:2] != counts:
            self._replay = *counts, replay_of(self._variables, self._steps, self._answers, self._values)
        return self._replay[2]

    def _add(self, step: Step | None, value: Any) -> int:
        if step is not None:
            self._steps.append(step)
        self._values.append(value)
        return len(self._values) - 1

    def _number(self, value: Any) -> int:
        if isinstance(value, SymbolicNumber):
            return value.number
        key = exactly(value)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = self._add((Constant(value), 0, -1), value)
        return number


def _unary(function: Callable[[Any], Any]) -> Callable[[SymbolicNumber], Any]:
    def method(self: SymbolicNumber) -> Any:
        return self.trace.apply(function, self)

    return method


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[SymbolicNumber, Any], Any]:
    def method(self: SymbolicNumber, other: Any) -> Any:
        if not isinstance(other, (SymbolicNumber, *_PLAIN)):
            return NotImplemented
        return self.trace.apply(function, self, other)

    return method


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[SymbolicNumber, Any], Any]:
    def method(self: SymbolicNumber, other: Any) -> Any:
        if not isinstance(other, _PLAIN):
            return NotImplemented
        return self.trace.apply(function, other, self)

    return method


def _compared(function: Callable[[Any, Any], bool]) -> Callable[[SymbolicNumber, Any], Any]:
    def method(self: SymbolicNumber, other: Any) -> Any:
        if isinstance(other, SymbolicNumber) and other.number == self.number:
            return function(0, 0)
        if not isinstance(other, (SymbolicNumber, *_PLAIN)):
            return NotImplemented
        return self.trace.guard(self.trace.apply(function, self, other))

    return method


def _converted(convert: Callable[[Any], Any]) -> Callable[[SymbolicNumber], Any]:
    def method(self: SymbolicNumber) -> Any:
        return convert(self.trace.guard(self))

    return method


class SymbolicNumber:
    """Number in a trace. Arithmetic on it records steps; comparisons and conversions add guards."""

    __slots__ = ("number", "trace")
    __array_ufunc__ = None
    """numpy defers arithmetic to this class."""

    def __init__(self, trace: SymbolicTrace, number: int) -> None:
        self.trace = trace
        self.number = number

    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __neg__, __abs__ = _unary(operator.neg), _unary(abs)
    __floor__, __ceil__ = _unary(math.floor), _unary(math.ceil)
    __eq__, __ne__ = _compared(operator.eq), _compared(operator.ne)
    __lt__, __le__ = _compared(operator.lt), _compared(operator.le)
    __gt__, __ge__ = _compared(operator.gt), _compared(operator.ge)
    __hash__ = _converted(hash)
    __index__, __int__, __float__ = _converted(operator.index), _converted(int), _converted(float)
    __str__, __repr__ = _converted(str), _converted(repr)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __format__(self, specification: str) -> str:
        return format(self.trace.guard(self), specification)


def apply_function(function: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    """Apply a function to two numbers, recorded as one step if one is symbolic.

    `function` must be pure, and the same object in every call.
    """
    for number in (first, second):
        if isinstance(number, SymbolicNumber):
            return number.trace.apply(function, first, second)
    return function(first, second)


def symbolic_min(first: int, second: int) -> int:
    """Return the smaller size without a guard, unlike `min`; a float if either size is a float."""
    return cast("int", apply_function(min, *_of_one_type(first, second)))


def symbolic_max(first: int, second: int) -> int:
    """Return the larger size, see `symbolic_min`."""
    return cast("int", apply_function(max, *_of_one_type(first, second)))


def _of_one_type(first: Any, second: Any) -> tuple[Any, Any]:
    if type(size_hint(first)) is type(size_hint(second)):
        return first, second
    return apply_function(to_float64, first, first), apply_function(to_float64, second, second)


def size_hint(value: Any) -> Any:
    """Return the value at the traced sizes, without a guard; maps over tuples."""
    if isinstance(value, tuple):
        return value if _UNTRACED.issuperset(map(type, value)) else tuple(map(size_hint, value))
    return value.trace.hint(value.number) if isinstance(value, SymbolicNumber) else value


def guard_value(value: Any) -> Any:
    """Return the value at the traced sizes, and guard on it; maps over tuples."""
    if isinstance(value, tuple):
        return tuple(map(guard_value, value))
    return value.trace.guard(value) if isinstance(value, SymbolicNumber) else value


class Interned:
    """Table of symbolic and plain numbers and of tuples of them. `substitute_sizes` specializes all entries at once."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._positions: dict[object, int] = {}
        self._plain: dict[object, Any] = {}
        """Key from `exactly` -> plain number. Plain numbers have negative positions."""
        self._settling: list[Callable[[Sequence[Any]], Any]] = []

    def add(self, value: Any) -> int:
        position = self._positions.setdefault(_equality_key(value), len(self._values))
        if position == len(self._values):
            self._values.append(value)
        return position

    def substitute_sizes(self, replay_values: Sequence[Any]) -> list[Any]:
        settling = self._settling
        if len(settling) < len(self._values):  # another thread may be extending it, too
            settling = [*settling, *map(self._substituter, self._values[len(settling) :])]
            self._settling = settling
        numbers = (*replay_values, *reversed(self._plain.values()))
        return [settle(numbers) for settle in settling]

    def _substituter(self, value: Any) -> Callable[[Sequence[Any]], Any]:
        if not isinstance(value, tuple):
            return operator.itemgetter(self._position(value))
        if len(value) > 1 and not any(isinstance(element, tuple) for element in value):
            return operator.itemgetter(*map(self._position, value))
        parts = tuple(map(self._substituter, value))
        return lambda numbers: tuple([part(numbers) for part in parts])

    def _position(self, value: Any) -> int:
        if isinstance(value, SymbolicNumber):
            return value.number
        key = exactly(value)
        self._plain.setdefault(key, value)
        return -1 - list(self._plain).index(key)


def identity_key(value: Any) -> object:
    """Return a key of a number, without a guard. Symbolic numbers equal only themselves; maps over tuples."""
    if isinstance(value, tuple):
        return tuple(map(identity_key, value))
    return (SymbolicNumber, value.number) if isinstance(value, SymbolicNumber) else exactly(value)


def _equality_key(value: Any) -> object:
    if isinstance(value, tuple):
        return tuple(map(_equality_key, value))
    return (
        (SymbolicNumber, value.trace.representative(value.number))
        if isinstance(value, SymbolicNumber)
        else exactly(value)
    )


def is_symbolic(value: object) -> bool:
    """Return True for a symbolic number, or a tuple with one."""
    return isinstance(value, SymbolicNumber) or (isinstance(value, tuple) and any(map(is_symbolic, value)))


def substitute_sizes(value: Any, values: Sequence[Any]) -> Any:
    """Return a copy with symbolic numbers replaced by their `values`, also in tuples, lists and dictionaries."""
    if isinstance(value, SymbolicNumber):
        return values[value.number]
    if isinstance(value, (tuple, list)):
        if not any(isinstance(element, (SymbolicNumber, *_HOLDING)) for element in value):
            return value
        elements = [substitute_sizes(element, values) for element in value]
        return elements if isinstance(value, list) else tuple(elements)
    if isinstance(value, (dict, MappingProxyType)):
        return {key: substitute_sizes(item, values) for key, item in value.items()}
    return value


_HOLDING = (tuple, list, dict, MappingProxyType)
