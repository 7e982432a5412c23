from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.onnx import ModelMetadata, Signature
from nnadapter.ray.rows import (
    ColumnType,
    axis_of,
    batches_of,
    check_names,
    check_outputs,
    check_types,
    checked_columns,
    columns_by_input,
    no_rows,
    run_rows,
)
from partition import Value


def signature(inputs, outputs):
    def values(rows):
        return tuple(Value(name=name, dtype=dtype, shape=shape) for name, (dtype, shape) in rows.items())

    return Signature(values(inputs), (), values(outputs), ModelMetadata("", "", "", "", "", 0, {}))


OPEN = signature({"x": ("float32", ("N", 3))}, {"y": ("float32", ("N", 3)), "s": ("float32", ("N",))})
FIXED = signature({"x": ("float32", (4, 3))}, {"y": ("float32", (4, 3)), "s": ("float32", (4,))})
ONE = signature({"x": ("float32", (1, 3))}, {"y": ("float32", (1, 3)), "s": ("float32", (1,))})
WHOLE = signature({"x": ("float32", (3,))}, {"y": ("float32", (3,)), "s": ("float32", ())})
SIZES = signature({"x": ("float32", ("N", "L"))}, {"y": ("float32", ("N", "L")), "s": ("float32", ("N",))})
NO_AXIS = signature({"x": ("float32", ("N", 3))}, {"y": ("float32", ("N", 3)), "s": ("float32", ())})


def mapped(model, column, fixed=None):
    """Return y = 2x and s = sum of x along the last axis for the rows of a column, and the shapes of the runs."""
    shapes = []

    def run(feed, rows):
        shapes.append((feed["x"].shape, rows))
        sums = feed["x"].sum(-1)
        return [feed["x"] * 2, sums.sum() if model is NO_AXIS else sums]

    columns = {"x": "c"}
    arrays = checked_columns(model, columns, {"c": column})
    axis = axis_of(model, ("y", "s"), batches_of(model, columns, arrays), fixed)
    return run_rows(axis, arrays, ("y", "s"), len(column), run), shapes


ROWS = np.arange(30, dtype=np.float32).reshape(10, 3)


@pytest.mark.parametrize(
    ("model", "fixed", "shapes"),
    [
        (OPEN, None, [((10, 3), 10)]),
        (OPEN, 4, [((4, 3), 4), ((4, 3), 4), ((4, 3), 2)]),
        (FIXED, None, [((4, 3), 4), ((4, 3), 4), ((4, 3), 2)]),
        (ONE, None, [((1, 3), 1)] * 10),
        (WHOLE, None, [((3,), 1)] * 10),
        (NO_AXIS, None, [((1, 3), 1)] * 10),
    ],
    ids=["any number", "compiled for four", "four", "one", "a row is all", "an output has no axis"],
)
def test_rows_keep_their_order(model, fixed, shapes):
    made, ran = mapped(model, ROWS, fixed)
    assert ran == shapes
    np.testing.assert_array_equal(made["y"], ROWS * 2)
    np.testing.assert_array_equal(made["s"], ROWS.sum(-1))


@pytest.mark.parametrize("lengths", [(2, 3, 2, 1, 3), (2, 2, 2)], ids=["several", "one"])
def test_rows_of_several_shapes_are_grouped(lengths):
    column = np.empty(len(lengths), object)
    for row, length in enumerate(lengths):
        column[row] = np.arange(length, dtype=np.float32) + row
    made, ran = mapped(SIZES, column)
    assert len(ran) == len(set(lengths))
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(made["y"][row], (np.arange(length, dtype=np.float32) + row) * 2)
        assert made["s"][row] == column[row].sum()


def test_empty_batch_is_not_run():
    result = no_rows(SIZES, ("s", "y"))
    assert [(name, array.shape, array.dtype.name) for name, array in result.items()] == [
        ("s", (0,), "float32"),
        ("y", (0, 0), "float32"),
    ]


def test_lists_of_equal_length_become_a_tensor():
    column = np.empty(2, object)
    column[0], column[1] = np.ones(3, np.float32), np.zeros(3, np.float32)
    made, ran = mapped(OPEN, column)
    assert ran == [((2, 3), 2)] and made["y"].shape == (2, 3)


@pytest.mark.parametrize(
    ("column", "error", "text"),
    [
        (ROWS.astype(np.float64), "InputTypeError", r"'c' contains float64, but input 'x' takes float32.*astype"),
        (np.array(["a", "b"]), "InputTypeError", "'c' contains string"),
        (
            np.array([ROWS[0], None, ROWS[1]], object),
            "InvalidInputError",
            r"'c' contains None in row 1 of 3, but input 'x' takes f",
        ),
        (
            ROWS[:, :2],
            "InvalidInputError",
            r"'c' have shape \[2\], but input 'x' is \['N', 3\]: give rows of shape \[3\]",
        ),
    ],
)
def test_misfit_columns_are_errors(column, error, text):
    with pytest.raises(getattr(nna.errors, error), match=text) as caught:
        mapped(OPEN, column)
    assert "\n" not in str(caught.value)


def test_output_without_row_axis_is_an_error():
    arrays = {"x": ROWS}
    axis = axis_of(OPEN, ("y",), {"x": True}, None)
    with pytest.raises(nna.errors.InvalidInputError, match=r"'y' has shape \[1, 3\] for 10 rows"):
        run_rows(axis, arrays, ("y",), 10, lambda feed, rows: [feed["x"][:1]])


def test_inputs_with_different_row_layouts_are_refused():
    two = signature({"x": ("float32", (2, 3)), "z": ("float32", (4, 3))}, {"y": ("float32", (2, 3))})
    with pytest.raises(nna.errors.InvalidInputError, match=r"\['x'\] have no batch axis.*\['z'\]"):
        axis_of(two, ("y",), {"x": True, "z": False}, None)
    with pytest.raises(nna.errors.InvalidInputError, match=r"different sizes, \[2, 4\]"):
        axis_of(two, ("y",), {"x": True, "z": True}, None)


def test_columns_are_checked_before_any_row_is_read():
    assert columns_by_input(OPEN, None) == {"x": "x"}
    for columns, kind, text in (
        ({"z": "c"}, "InvalidInputError", "input 'z' that the model does not have"),
        ({}, "MissingInputError", r"input 'x' has no column; pass columns=\{'x': COLUMN\}"),
        ({"x": 3}, "InvalidInputError", "the column of input 'x' must be a name, got 3"),
        (["x"], "InvalidInputError", "columns must be a dictionary"),
    ):
        with pytest.raises(getattr(nna.errors, kind), match=text):
            columns_by_input(OPEN, columns)
    with pytest.raises(nna.errors.InvalidInputError, match="column 'pictur' for input 'x'.*did you mean 'picture'"):
        check_names({"x": "pictur"}, (), ["picture", "label"])
    with pytest.raises(nna.errors.InvalidInputError, match="column 'k' of passthrough_columns"):
        check_names({}, ("k",), ["c"])
    with pytest.raises(nna.errors.InvalidInputError, match="output 'y' would replace the column"):
        check_outputs(OPEN, None, ("y",))
    with pytest.raises(nna.errors.InputTypeError, match="'c' contains int64"):
        check_types(OPEN, {"x": "c"}, {"c": ColumnType("int64", None)})
    with pytest.raises(nna.errors.InvalidInputError, match=r"shape \[5\]"):
        check_types(OPEN, {"x": "c"}, {"c": ColumnType("float32", (5,))})
