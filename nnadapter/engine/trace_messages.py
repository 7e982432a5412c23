"""Conversion between protobuf messages and traces of symbolic sizes, stored as steps of named functions.

A forged file could make numbers grow without end (repeated squares), so the reader bounds their bits in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any

from nnadapter.errors import CompiledModelError
from nnadapter.files.messages import Message
from nnadapter.ir.symbolic_numbers import BINARY, UNARY, Constant, Step, SymbolicNumber, SymbolicTrace
from nnadapter.store.container import Container

_NONE = -1
_NAMES: Mapping[Callable[..., Any], str] = MappingProxyType(
    {function: name for names in (UNARY, BINARY) for name, function in names.items()}
)
_SIZE_BITS, _REAL_BITS, _MOST_BITS = 64, 1024, 1 << 14
_SUMS, _PRODUCTS = frozenset({"add", "sub"}), frozenset({"mul"})
_REMAINDER = "mod"
_KEEPING = frozenset({"neg", "abs", "floordiv", "max", "min", "quotient_of_integers"})
_KINDS: Mapping[type, str] = MappingProxyType({bool: "truth", int: "whole", float: "real"})


def write_trace(message: Message, trace: SymbolicTrace) -> None:
    """Fill a Trace message with a trace of symbolic sizes; numbers keep their positions."""
    functions: dict[str, int] = {}
    for function, first, second in trace.steps:
        if isinstance(function, Constant):
            message.steps.extend((0, len(message.constants), 0))
            write_number(message.constants.add(), function.value)
            continue
        name = _NAMES.get(function)
        if name is None:
            called = getattr(function, "__name__", "a function")
            raise CompiledModelError(f"sizes depend on {called!r}, which compiled models do not support")
        message.steps.extend((functions.setdefault(name, len(functions) + 1), first, second + 1))
    message.functions.extend(functions)
    if _grows_too_much(trace.steps, trace.count - len(trace.steps)):
        raise CompiledModelError("a size may grow beyond any limit; write the model without such powers")
    for number, answer in trace.answers.items():
        message.answered.append(number)
        write_number(message.answers.add(), answer)


def read_trace(message: Message, variables: Sequence[int], container: Container) -> SymbolicTrace:
    """Return the trace of a Trace message; `variables` are the dynamic sizes at which it was made."""
    steps = list(_steps(message, len(variables), container))
    if _grows_too_much(steps, len(variables)):
        raise container.damaged("a size may grow beyond any limit")
    count = len(variables) + len(steps)
    if len(message.answered) != len(message.answers) or any(number >= count for number in message.answered):
        raise container.damaged("guards refer to missing numbers")
    answers = {number: read_number(row) for number, row in zip(message.answered, message.answers, strict=True)}
    try:
        trace = SymbolicTrace.of(variables, steps, answers)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise container.damaged(f"a size cannot be computed: {error}") from error
    if any(trace.hint(number) != answer for number, answer in answers.items()):
        raise container.damaged("a plan does not serve the sizes for which it was made")
    return trace


def write_number(message: Message, number: Any) -> None:
    """Fill a Number message; raise CompiledModelError unless the number is finite and has at most 64 bits."""
    field = _KINDS.get(type(number))
    try:
        if field is None or not isfinite(number):
            raise ValueError
        setattr(message, field, number)
    except (ValueError, OverflowError):
        raise CompiledModelError(f"{number!r} depends on sizes, but compiled models cannot store it") from None


def read_number(message: Message) -> Any:
    """Return the number of a Number message; 0 if it is empty."""
    return getattr(message, message.WhichOneof("value") or "whole")


def traced_numbers(
    message: Message, count: int, trace: SymbolicTrace, container: Container
) -> dict[int, SymbolicNumber]:
    """Return symbolic numbers by place, from the fields `places` and `numbers` of a message.

    Places count from 0 to `count` in the object that the message describes.
    """
    places, numbers = list(message.places), list(message.numbers)
    is_sound = len(places) == len(numbers) == len(set(places))
    if not is_sound or any(place >= count for place in places) or any(number >= trace.count for number in numbers):
        raise container.damaged("sizes refer to missing places or numbers")
    return {place: SymbolicNumber(trace, number) for place, number in zip(places, numbers, strict=True)}


def _steps(message: Message, variables: int, container: Container) -> list[Step]:
    rows = message.steps
    if len(rows) % 3:
        raise container.damaged("a step of a trace does not have three numbers")
    functions = [(UNARY.get(name), BINARY.get(name)) for name in message.functions]
    constants = list(map(read_number, message.constants))
    steps: list[Step] = []
    for result, (function, first, raw) in enumerate(zip(rows[::3], rows[1::3], rows[2::3], strict=True), variables):
        second = raw - 1
        if not function:
            if first >= len(constants):
                raise container.damaged("a constant of a trace is missing")
            steps.append((Constant(constants[first]), 0, _NONE))
            continue
        if function > len(functions) or first >= result or second >= result:
            raise container.damaged("a step of a trace reads a missing number")
        named = functions[function - 1][0 if second < 0 else 1]
        if named is None:
            raise container.damaged(f"sizes depend on {message.functions[function - 1]!r}, which is unknown")
        steps.append((named, first, second))
    return steps


def _grows_too_much(steps: Sequence[Step], variables: int) -> bool:
    """Return True if a number may get more bits than any size of a model needs."""
    bits = [_SIZE_BITS] * variables
    for function, first, second in steps:
        if isinstance(function, Constant):
            bits.append(_SIZE_BITS if isinstance(function.value, int) else _REAL_BITS)
            continue
        read = [bits[number] for number in (first, second) if number >= 0]
        bits.append(_bits(_NAMES[function], read))
        if bits[-1] > _MOST_BITS:
            return True
    return False


def _bits(name: str, read: Sequence[int]) -> int:
    if name in _SUMS:
        return max(read) + 1
    if name in _PRODUCTS:
        return sum(read)
    if name == _REMAINDER:
        return read[-1]
    return max(read) if name in _KEEPING else _REAL_BITS
