"""Which plan of a file inputs choose, for who looks at one and runs none: with all that reads models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnadapter.compiled_models.compiled_file import CompiledFile
from nnadapter.compiled_models.forks import choice_in_words, fork_of
from nnadapter.compiled_models.messages import Message
from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array
from nnadapter.running.choices import array_for, measured


def plan_of_file(file: CompiledFile, values: Mapping[str, Any]) -> Message:
    """Return the first plan of a compiled file that serves what inputs choose; without values, the first one.

    Raises:
        InvalidInputError: contents of inputs do not fit, those that choose are not all there, or the file has no plan
            for what they choose.
    """
    plans, declared = file.message.plans, file.signature.by_name
    feed: dict[str, Array] = {name: array_for(name, value, declared) for name, value in values.items()}
    fork = fork_of(file) if feed else None
    if fork is None:
        return plans[0]
    lost = [name for row in file.message.forks for name in row.inputs if name not in feed]
    if lost:
        raise InvalidInputError(f"input {lost[0]!r} chooses as well; give it, too", name=lost[0])
    truths = fork.chosen({**measured(file.shapes(plans[0])), **feed})
    for wanted in (truths, ()):  # as runs do
        plan = next((plan for plan in plans if tuple(plan.truths) == wanted), None)
        if plan is not None:
            return plan
    raise InvalidInputError(f"the compiled model has no plan where {choice_in_words(file, truths)}")
