"""Rewriting: pieces of a model that match a pattern, replaced in one forward sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Model
from nnadapter.ir.pattern import Match, OperationPattern, match_at, required_types

Replacement = Callable[[ModelEditor, Match], Sequence[int] | None]
"""Adds what comes in the place of a match; returns the operands that stand for the anchor's outputs, or None to refuse.

Refuse before adding anything. Give the new operations `origins=match.operations`, or those with another one first.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A pattern and what comes in its place."""

    pattern: OperationPattern
    replacement: Replacement
    required: frozenset[frozenset[str]] = field(init=False)
    """Sets of operation types, one of each of which a model must have; see `required_types`."""

    def __post_init__(self) -> None:
        """Work out what a model must have."""
        object.__setattr__(self, "required", required_types(self.pattern))

    def may_apply(self, types: Set[str]) -> bool:
        """Whether a model with operations of these types can have a match."""
        return not any(map(types.isdisjoint, self.required))


def rewrite(model: Model, rules: Sequence[Rule]) -> Model:
    """Apply `rules` in one forward sweep; the same model if none applies.

    1. At every operation the rules are tried in their order, and the first that applies is taken.
    2. What was replaced can be a part of a later match, so a chain of foldable operations folds in one sweep.
    3. An output of the match keeps its name, and stays a model output if it was one.
    """
    if not any(rule.may_apply(model.operation_types) for rule in rules):
        return model
    by_type: dict[str, list[Rule]] = {}
    for rule in rules:
        for type_ in rule.pattern.types:
            by_type.setdefault(type_, []).append(rule)
    editor = ModelEditor(model)
    for index in editor.sweep():
        candidates = by_type.get(editor.operation(index).type)
        if candidates:
            _apply(editor, index, candidates)
    return editor.finish()


def _apply(editor: ModelEditor, index: int, rules: Sequence[Rule]) -> None:
    for rule in rules:
        if not rule.may_apply(editor.types):
            continue
        match = match_at(editor, index, rule.pattern)
        results = None if match is None else rule.replacement(editor, match)
        if match is not None and results is not None:
            editor.replace(match.operations, results)
            return
