"""Rewriting: pieces of a model that match a pattern, replaced in one forward sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


def rewrite(model: Model, rules: Sequence[Rule]) -> Model:
    """Apply `rules` in one forward sweep; the same model if none applies.

    1. At every operation the rules are tried in their order, and the first that applies is taken.
    2. What was replaced can be a part of a later match, so a chain of foldable operations folds in one sweep.
    3. An output of the match keeps its name, and stays a model output if it was one.
    """
    by_type: dict[str, list[_Candidate]] = {}
    for rule in rules:
        for type_ in rule.pattern.types:
            by_type.setdefault(type_, []).append((required_types(rule.pattern), rule))
    if not any(operation.type in by_type for operation in model.operations):
        return model
    editor = ModelEditor(model)
    for index in editor.sweep():
        _apply(editor, index, by_type.get(editor.operation(index).type, ()))
    return editor.finish()


_Candidate = tuple[frozenset[frozenset[str]], Rule]


def _apply(editor: ModelEditor, index: int, candidates: Sequence[_Candidate]) -> None:
    for required, rule in candidates:
        if any(map(editor.types.isdisjoint, required)):
            continue
        match = match_at(editor, index, rule.pattern)
        results = None if match is None else rule.replacement(editor, match)
        if match is not None and results is not None:
            editor.replace(match.operations, results)
            return
