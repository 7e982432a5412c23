"""Passes that edit models: their arguments, and sharing an editor, which changes nothing but the time."""

import pickle
from functools import partial
from inspect import signature

import pytest

from nnadapter.errors import InvalidModelError, PassError
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.passes import PASSES, fold_constants, run_passes
from nnadapter.ir.rewrite import EditingPass, edit_of, editing
from tests.ir.passes.program import Program, chain, types


@editing
def replace_all(editor, *, old="RELU", new="TANH"):
    """Replace one type by another."""
    for index in editor.sweep({old}):
        editor.replace((index,), editor.add_operation(new, editor.operation(index).inputs, origins=(index,)))


def test_editing_pass_returns_a_model():
    model = chain("RELU", "EXP", "RELU")
    assert types(replace_all(model)) == ["TANH", "EXP", "TANH"]
    assert replace_all(model, old="SIN") is model
    assert replace_all.__name__ == "replace_all" and replace_all.__doc__ == "Replace one type by another."


def test_parameters_of_partial_passes_are_preserved():
    editor = ModelEditor(chain("SIN", "RELU"))
    edit = edit_of(partial(partial(replace_all, old="SIN"), new="COS"))
    assert edit is not None
    edit(editor)
    assert types(editor.finish()) == ["COS", "RELU"]


@pytest.mark.parametrize("function", [lambda model: model, partial(print), PASSES["cancel_transposes"]])
def test_other_passes_have_no_edit(function):
    assert edit_of(function) is None


@editing
def note(editor, *, editors):
    """Record the editor that the pass runs with."""
    editors.append(editor)


def test_consecutive_passes_share_an_editor():
    editors = []
    noted, back = partial(note, editors=editors), partial(replace_all, old="TANH", new="RELU")
    passes = [noted, replace_all, noted, "fold_constants", noted, back, replace_all, noted, "simplify", noted]
    after = run_passes(chain("RELU", "EXP"), passes)
    assert types(after) == ["TANH", "EXP"]
    assert len(editors) == 5 and len(set(map(id, editors))) == 1


def test_model_pass_sees_previous_edits():
    observed, editors = [], []
    noted = partial(note, editors=editors)

    def look(model):
        observed.append(types(model))
        return model

    assert types(run_passes(chain("RELU"), [noted, replace_all, look, "simplify", noted])) == ["TANH"]
    assert observed == [["TANH"]] and len(editors) == 2 and editors[0] is not editors[1]


def test_observer_sees_every_edit():
    observed = []
    back = partial(replace_all, old="TANH", new="RELU")
    run_passes(chain("RELU"), [replace_all, back], lambda name, old, new: observed.append((types(old), types(new))))
    assert observed == [(["RELU"], ["TANH"]), (["TANH"], ["RELU"])]


def test_failing_edit_names_the_pass():
    @editing
    def wrong(editor):
        raise InvalidModelError("nothing fits")

    with pytest.raises(PassError, match="pass 'wrong' failed: nothing fits"):
        run_passes(chain("RELU"), [wrong])


def test_built_in_passes_are_editing_passes():
    assert isinstance(fold_constants, EditingPass) and isinstance(PASSES["fuse_activation"], EditingPass)


def test_editing_pass_behaves_as_a_function():
    found = PASSES["remove_dead"]
    assert pickle.loads(pickle.dumps(found)) is found
    assert repr(found) == "<pass remove_dead>"
    assert list(signature(fold_constants).parameters) == ["model", "evaluate", "most_bytes", "sizes"]
    assert str(signature(replace_all)).startswith("(model") and signature(replace_all).return_annotation == "Model"


def test_removed_nodes_are_origins_of_the_first_reader():
    """The first reader of a removed node stays the first, although an edit of another pass changes the last one."""
    program = Program(x=(3, 4))
    copy = program("ASSIGN", program.x)
    model = program.finish(program("MUL", program("RELU", program("ADD", copy, 3.0)), copy))
    passes = ["fuse_activation", "simplify"]
    alone = run_passes(model, passes, lambda name, before, after: None)
    result = run_passes(model, passes)
    assert types(result) == ["ADD", "MUL"] and "n1" in result.operations[0].origins
    assert [operation.origins for operation in result.operations] == [
        operation.origins for operation in alone.operations
    ]
