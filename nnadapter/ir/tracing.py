"""Numbers that remember how they came about, so that work done for some sizes need not be done again for others.

A computation over sizes is run once with traced numbers in the place of those sizes. They compute as numbers do; the
trace notes every step, and every answer on which the computation decided something: `size == 1` was true, `size` was
used as an index. `Trace.replay` does the steps again for other sizes, and says no where an answer would differ: then
the computation has to be run itself.

A traced number is no `int`, on purpose: whatever takes numbers apart in C (numpy, `range`, a hash, a text) must ask
for the plain value first, and that is noted as an answer too. Only `current` looks without asking.

Source: symbolic sizes with guards, as PyTorch 2 has them (Ansel et al., ASPLOS 2024, section 4).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from nnadapter.ir.replaying import Constant, Replay, Step, exactly, replay_of
from nnadapter.ir.size_arithmetic import to_float64

_PLAIN = (int, float)
_UNTRACED = frozenset((int, float, bool, str))
"""Kinds of what is no traced number, and holds none."""


class Trace:
    """Steps and answers of one computation. Values are numbered: variables first, then as they come about."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._variables = 0
        self._steps: list[Step] = []
        self._known: dict[object, int] = {}
        self._answers: dict[int, Any] = {}
        self._replay: tuple[int, int, Replay] | None = None
        """What the steps come to, and how many steps and answers there were when that was made."""

    @classmethod
    def of(cls, variables: Sequence[int], steps: Sequence[Step], answers: Mapping[int, Any]) -> Trace:
        """The trace of these variables, steps and answers, as another one tells them.

        Raises:
            ArithmeticError, ValueError, TypeError: a step cannot be computed.
        """
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

    def __reduce__(self) -> tuple[Callable[..., Trace], tuple[Sequence[int], Sequence[Step], Mapping[int, Any]]]:
        """Another process gets its steps and answers."""
        return Trace.of, (self.variables, self.steps, dict(self._answers))

    @property
    def variables(self) -> Sequence[int]:
        """The sizes that were traced."""
        return tuple(self._values[: self._variables])

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return len(self._values)

    @property
    def steps(self) -> Sequence[Step]:
        """What makes the numbers behind the variables, one each."""
        return tuple(self._steps)

    @property
    def answers(self) -> Mapping[int, Any]:
        """The values that numbers have to have."""
        return MappingProxyType(self._answers)

    def variable(self, value: int) -> Traced:
        """A number that a replay is given, in the order of these calls. All are asked for before anything else."""
        assert not self._steps, "variables come before everything that is made of them"
        self._variables += 1
        return Traced(self, self._add(None, value))

    def replay(self, variables: Sequence[int]) -> tuple[Any, ...] | None:
        """The values of every number for other variables; None if something would have been decided otherwise."""
        assert len(variables) == self._variables, "a replay needs every variable"
        return self._shortened()(variables)

    def alike(self, number: int) -> int:
        """The first number that this one is equal to wherever everything is decided as it was so far."""
        return self._shortened().firsts[number]

    def is_fixed(self, number: int) -> bool:
        """Whether a number has no other value wherever everything is decided as it was so far."""
        return self._shortened().fixed[number]

    def apply(self, function: Callable[..., Any], first: Any, second: Any = None) -> Traced:
        """A number made from one or two others, of which one at least is traced."""
        numbers = self._number(first), -1 if second is None else self._number(second)
        key = (function, *numbers)
        result_number = self._known.get(key)
        if result_number is None:
            arguments = [self._values[number] for number in numbers if number >= 0]
            result_number = self._known[key] = self._add((function, *numbers), function(*arguments))
        return Traced(self, result_number)

    def answer(self, number: Traced) -> Any:
        """The value of a number, on which something is decided from here on."""
        value = self._values[number.number]
        self._answers.setdefault(number.number, value)
        return value

    def take_back(self, answer_count: int) -> Mapping[int, Any]:
        """Forget what was decided since there were so many answers, as nothing follows from it; return it."""
        forgotten = dict(list(self._answers.items())[answer_count:])
        for number in forgotten:
            del self._answers[number]
        self._replay = None
        return forgotten

    def decide(self, answers: Mapping[int, Any]) -> None:
        """Hold to answers that were taken back."""
        for number, answer in answers.items():
            self._answers.setdefault(number, answer)

    def value(self, number: int) -> Any:
        """The value of a number, for this trace's own sizes; nothing is decided on it."""
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
        if isinstance(value, Traced):
            return value.number
        key = exactly(value)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = self._add((Constant(value), 0, -1), value)
        return number


def _unary(function: Callable[[Any], Any]) -> Callable[[Traced], Any]:
    def method(self: Traced) -> Any:
        return self.trace.apply(function, self)

    return method


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Traced, Any], Any]:
    def method(self: Traced, other: Any) -> Any:
        if not isinstance(other, (Traced, *_PLAIN)):
            return NotImplemented
        return self.trace.apply(function, self, other)

    return method


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Traced, Any], Any]:
    def method(self: Traced, other: Any) -> Any:
        if not isinstance(other, _PLAIN):
            return NotImplemented
        return self.trace.apply(function, other, self)

    return method


def _compared(function: Callable[[Any, Any], bool]) -> Callable[[Traced, Any], Any]:
    def method(self: Traced, other: Any) -> Any:
        if isinstance(other, Traced) and other.number == self.number:
            return function(0, 0)
        if not isinstance(other, (Traced, *_PLAIN)):
            return NotImplemented
        return self.trace.answer(self.trace.apply(function, self, other))

    return method


def _converted(convert: Callable[[Any], Any]) -> Callable[[Traced], Any]:
    def method(self: Traced) -> Any:
        return convert(self.trace.answer(self))

    return method


class Traced:
    """A number of a trace. Only numbers of one trace may meet."""

    __slots__ = ("number", "trace")
    __array_ufunc__ = None
    """numpy's own numbers leave arithmetic to this class."""

    def __init__(self, trace: Trace, number: int) -> None:
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
        """Whether it is not 0; no more than that is decided on."""
        return bool(self != 0)

    def __format__(self, specification: str) -> str:
        """As the plain number, which is decided on from here on."""
        return format(self.trace.answer(self), specification)


def computed(function: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    """What a function makes of two numbers, taken as one step if one of them is traced.

    Args:
        function: pure, of plain numbers; the same object every time.
        first: a number.
        second: a number.
    """
    for number in (first, second):
        if isinstance(number, Traced):
            return number.trace.apply(function, first, second)
    return function(first, second)


def least(first: int, second: int) -> int:
    """The smaller of two sizes; what `min` decides, a trace would have to decide the same way for ever.

    Where one is a float, so is what comes out: `min(size, 1.0)` is an int at some sizes, and 1 == 1.0 tells no type.
    """
    return cast("int", computed(min, *_of_one_type(first, second)))


def greatest(first: int, second: int) -> int:
    """The larger of two sizes; a float where one of them is."""
    return cast("int", computed(max, *_of_one_type(first, second)))


def _of_one_type(first: Any, second: Any) -> tuple[Any, Any]:
    if type(current(first)) is type(current(second)):
        return first, second
    return computed(to_float64, first, first), computed(to_float64, second, second)


def current(value: Any) -> Any:
    """A number's value now, tuples taken apart; only for checks that hold for other sizes as well."""
    if isinstance(value, tuple):
        return value if _UNTRACED.issuperset(map(type, value)) else tuple(map(current, value))
    return value.trace.value(value.number) if isinstance(value, Traced) else value


def plain(value: Any) -> Any:
    """A number's value, tuples taken apart, on which something is decided from here on."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.trace.answer(value) if isinstance(value, Traced) else value


class Interned:
    """Values that hold traced numbers, equal ones known by one position and settled once per replay."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._positions: dict[object, int] = {}
        self._plain: dict[object, Any] = {}
        """What values hold beside traced numbers, the last first where they are settled."""
        self._settling: list[Callable[[Sequence[Any]], Any]] = []

    def add(self, value: Any) -> int:
        """The position of a value, the same for values that are equal wherever a replay does not refuse."""
        position = self._positions.setdefault(_alike(value), len(self._values))
        if position == len(self._values):
            self._values.append(value)
        return position

    def settled(self, replay_values: Sequence[Any]) -> list[Any]:
        """The values by position, with the numbers of a replay."""
        settling = self._settling
        if len(settling) < len(self._values):  # another thread may be at it, too
            settling = [*settling, *map(self._settled, self._values[len(settling) :])]
            self._settling = settling
        numbers = (*replay_values, *reversed(self._plain.values()))
        return [settle(numbers) for settle in settling]

    def _settled(self, value: Any) -> Callable[[Sequence[Any]], Any]:
        """What settles one value, its form looked at now."""
        if not isinstance(value, tuple):
            return operator.itemgetter(self._place(value))
        if len(value) > 1 and not any(isinstance(element, tuple) for element in value):
            return operator.itemgetter(*map(self._place, value))
        parts = tuple(map(self._settled, value))
        return lambda numbers: tuple([part(numbers) for part in parts])

    def _place(self, value: Any) -> int:
        """Where a number is, or what is no tuple: behind the numbers of a replay, told from their end."""
        if isinstance(value, Traced):
            return value.number
        key = exactly(value)
        self._plain.setdefault(key, value)
        return -1 - list(self._plain).index(key)


def told_apart(value: Any) -> object:
    """A key that tells values apart, tuples taken apart, without deciding anything on a traced number."""
    if isinstance(value, tuple):
        return tuple(map(told_apart, value))
    return (Traced, value.number) if isinstance(value, Traced) else exactly(value)


def _alike(value: Any) -> object:
    """A key that values share which are equal wherever their trace does not refuse a replay."""
    if isinstance(value, tuple):
        return tuple(map(_alike, value))
    return (Traced, value.trace.alike(value.number)) if isinstance(value, Traced) else exactly(value)


def is_traced(value: object) -> bool:
    """Whether a value is a traced number, or a tuple that holds one."""
    return isinstance(value, Traced) or (isinstance(value, tuple) and any(map(is_traced, value)))


def settled(value: Any, values: Sequence[Any]) -> Any:
    """`value` with the numbers of a replay in the place of traced ones, inside tuples, lists and dictionaries too."""
    if isinstance(value, Traced):
        return values[value.number]
    if isinstance(value, (tuple, list)):
        if not any(isinstance(element, (Traced, *_HOLDING)) for element in value):
            return value
        elements = [settled(element, values) for element in value]
        return elements if isinstance(value, list) else tuple(elements)
    if isinstance(value, (dict, MappingProxyType)):
        return {key: settled(item, values) for key, item in value.items()}
    return value


_HOLDING = (tuple, list, dict, MappingProxyType)
"""What traced numbers may be inside of."""
