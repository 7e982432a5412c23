"""Rewriting: passes written as edits, and rules that replace what matches a pattern.

Passes that are written as edits, so that those that follow one another share an editor.

To make a model of what was edited costs a look at every operation, and so does an editor for the next pass. A pass
that takes an editor does neither: whoever runs several passes makes one model at their end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from inspect import Parameter, signature
from typing import Any, Concatenate, Generic, ParamSpec

from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Model
from nnadapter.ir.pattern import Match, OperationPattern, match_at, required_types
from nnadapter.process.resources import memoize

Parameters = ParamSpec("Parameters")
Edit = Callable[[ModelEditor], None]
"""Changes what the editor holds, by sweeps of its own."""


class EditingPass(Generic[Parameters]):
    """A pass as every other one, from model to model, that can also be given an editor."""

    def __init__(self, edit: Callable[Concatenate[ModelEditor, Parameters], None]) -> None:
        self.edit = edit
        """The function that it is made of."""
        update_wrapper(self, edit)
        edit_signature = signature(edit)
        model = Parameter("model", Parameter.POSITIONAL_OR_KEYWORD, annotation="Model")
        named = [model, *list(edit_signature.parameters.values())[1:]]
        self.__signature__ = edit_signature.replace(parameters=named, return_annotation="Model")

    def __repr__(self) -> str:
        """Its name."""
        return f"<pass {getattr(self.edit, '__name__', self.edit)}>"

    def __reduce__(self) -> str:
        """The name that it has in its module: pickled by that, as functions are."""
        return self.edit.__qualname__

    def __call__(self, model: Model, *arguments: Parameters.args, **keywords: Parameters.kwargs) -> Model:
        """The edited model, or the same one if nothing was changed."""
        editor = ModelEditor(model)
        self.edit(editor, *arguments, **keywords)
        return editor.finish()


def editing(edit: Callable[Concatenate[ModelEditor, Parameters], None]) -> EditingPass[Parameters]:
    """Make a pass of a function that edits; for decorating it."""
    return EditingPass(edit)


def edit_of(function: Callable[..., Any]) -> Edit | None:
    """The function that edits behind a pass, with the parameters that the pass was given; None if there is none."""
    if isinstance(function, EditingPass):
        return function.edit
    if isinstance(function, partial):
        inner = edit_of(function.func)
        return None if inner is None else partial(inner, *function.args, **function.keywords)
    return None


Replacement = Callable[[ModelEditor, Match], Sequence[int] | None]
"""Adds what comes in the place of a match; returns the operands that stand for the anchor's outputs, or None to refuse.

Refuse before adding anything. Give the new operations `origins=match.operations`, or those with another one first.
"""


_MOST_KNOWN = 1 << 14
"""Answers that are remembered, of all rules."""


@dataclass(frozen=True, slots=True, eq=False)
class RewriteRule:
    """A pattern and what comes in its place."""

    pattern: OperationPattern
    replacement: Replacement
    required: frozenset[frozenset[str]] = field(init=False)
    """Sets of operation types, one of each of which a model must have; see `required_types`."""

    def __post_init__(self) -> None:
        """Work out what a model must have."""
        object.__setattr__(self, "required", required_types(self.pattern))

    def may_apply(self, types: frozenset[str]) -> bool:
        """Whether a model with operations of these types can have a match."""
        return _have_one_of_each(types, self.required)


@memoize(_MOST_KNOWN)
def _have_one_of_each(types: frozenset[str], required: frozenset[frozenset[str]]) -> bool:
    # Many models, such as the segments of one, have the same types.
    return not any(map(types.isdisjoint, required))


def rewrite(model: Model, rules: Sequence[RewriteRule]) -> Model:
    """Apply `rules` in one forward sweep; the same model if none applies.

    1. At every operation the rules are tried in their order, and the first that applies is taken.
    2. What was replaced can be a part of a later match, so a chain of foldable operations folds in one sweep.
    3. An output of the match keeps its name, and stays a model output if it was one.
    """
    editor = ModelEditor(model)
    apply_rules(editor, rules)
    return editor.finish()


def apply_rules(editor: ModelEditor, rules: Sequence[RewriteRule]) -> None:
    """What `rewrite` does, to a model that is being edited."""
    types = editor.types
    candidates = _candidates(rules, types)
    if not candidates:
        return
    for index in editor.sweep(frozenset().union(*(rule.pattern.types for rule in rules))):
        if editor.types is not types:
            types = editor.types
            candidates = _candidates(rules, types)
        _apply(editor, index, candidates.get(editor.operation(index).type, ()))


def _candidates(rules: Sequence[RewriteRule], types: frozenset[str]) -> Mapping[str, Sequence[RewriteRule]]:
    """The rules that can have a match in a model with operations of these types, by the type of the anchor."""
    rules_by_type: dict[str, list[RewriteRule]] = {}
    for rule in rules:
        if rule.may_apply(types):
            for type_ in rule.pattern.types:
                rules_by_type.setdefault(type_, []).append(rule)
    return rules_by_type


def _apply(editor: ModelEditor, index: int, rules: Sequence[RewriteRule]) -> None:
    for rule in rules:
        match = match_at(editor, index, rule.pattern)
        results = None if match is None else rule.replacement(editor, match)
        if match is not None and results is not None:
            editor.replace(match.operations, results)
            return
