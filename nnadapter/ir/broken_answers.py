"""What a trace would decide otherwise for other sizes, in words."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nnadapter.ir.replaying import Constant, Step, exactly
from nnadapter.ir.tracing import Trace

_DEEPEST = 4
_SIGNS: Mapping[Callable[..., Any], str] = MappingProxyType(
    {
        operator.add: "+",
        operator.sub: "-",
        operator.mul: "*",
        operator.floordiv: "//",
        operator.truediv: "/",
        operator.mod: "%",
        operator.eq: "==",
        operator.ne: "!=",
        operator.lt: "<",
        operator.le: "<=",
        operator.gt: ">",
        operator.ge: ">=",
    }
)


def broken(trace: Trace, variables: Sequence[int], names: Sequence[str]) -> str:
    """What would be decided otherwise for other variables, in the fewest words; empty if nothing would.

    Args:
        trace: of some variables.
        variables: others, as for `Trace.replay`.
        names: what the variables are called.
    """
    steps = trace.steps
    values = _computed(steps, variables)
    if values is None:
        return "sizes cannot be computed"
    texts = [
        f"{_text(steps, number, names)} is {values[number]}, was {answer}"
        for number, answer in trace.answers.items()
        if exactly(values[number]) != exactly(answer)
    ]
    return min(texts, key=lambda text: ("..." in text, len(text)), default="")


def _computed(steps: Sequence[Step], variables: Sequence[int]) -> list[Any] | None:
    """Every number for other variables; None if one cannot be computed."""
    values: list[Any] = list(variables)
    try:
        for function, first, second in steps:
            values.append(function(values[first]) if second < 0 else function(values[first], values[second]))
    except (ArithmeticError, ValueError):
        return None
    return values


def _text(steps: Sequence[Step], number: int, names: Sequence[str], depth: int = _DEEPEST) -> str:
    if number < len(names):
        return names[number]
    function, first, second = steps[number - len(names)]
    if isinstance(function, Constant):
        return repr(function.value)
    if not depth:
        return "..."
    inner = [_text(steps, operand, names, depth - 1) for operand in (first, second) if operand >= 0]
    sign = _SIGNS.get(function)
    if sign is None or len(inner) != 2:
        return f"{getattr(function, '__name__', 'a function')}({', '.join(inner)})"
    text = f"{inner[0]} {sign} {inner[1]}"
    return text if depth == _DEEPEST else f"({text})"
