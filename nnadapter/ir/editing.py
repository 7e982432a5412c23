"""Passes that are written as edits, so that those that follow one another share an editor.

To make a model of what was edited costs a look at every operation, and so does an editor for the next pass. A pass
that takes an editor does neither: whoever runs several passes makes one model at their end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from inspect import Parameter, signature
from typing import Any, Concatenate, Generic, ParamSpec

from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Model

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
