"""Arithmetic on shapes, compared with ONNX Runtime, at the traced sizes and at others."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnadapter.candidates import OPERATORS
from nnadapter.converters.shape_arithmetic import MOST_ELEMENTS, evaluate, shape_of
from nnadapter.ir import Array, SymbolicNumber
from nnadapter.ir.structure import SymbolicArray
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from nnadapter.onnx import OnnxNode, build, read_model
from nnadapter.onnx.preparation import evaluate as by_onnxruntime
from partition import Value

INT64, INT32, FLOAT, DOUBLE = (np.dtype(name) for name in ("int64", "int32", "float32", "float64"))
OPSET = 17
SIZES = st.lists(st.integers(1, 40), min_size=3, max_size=3)


def constant(*items: int, dtype: np.dtype = INT64) -> Array:
    return np.array(items, dtype)


CASES = {
    "Add": ("Add", {}, [constant(1, 2, 3)], INT64),
    "Sub": ("Sub", {}, [constant(100, dtype=INT32)], INT32),
    "Mul in float": ("Mul", {}, [np.array([0.3, 1.7, 2.0], FLOAT)], FLOAT),
    "Mul in double": ("Mul", {}, [np.array(0.1, DOUBLE)], DOUBLE),
    "Div": ("Div", {}, [constant(3, 5, -7)], INT64),
    "Div in float": ("Div", {}, [np.array([3, 7, 32], FLOAT)], FLOAT),
    "Max": ("Max", {}, [constant(7)], INT64),
    "Min": ("Min", {}, [constant(7)], INT64),
    "Floor": ("Floor", {}, [], FLOAT),
    "Ceil": ("Ceil", {}, [], DOUBLE),
    "Cast to float": ("Cast", {"to": onnx.TensorProto.FLOAT}, [], INT64),
    "Cast to int32": ("Cast", {"to": onnx.TensorProto.INT32}, [], FLOAT),
    "Cast of integers to int32": ("Cast", {"to": onnx.TensorProto.INT32}, [], INT64),
    "Gather": ("Gather", {"axis": 0}, [constant(2, -1, 0)], INT64),
    "Gather of one": ("Gather", {"axis": 0}, [np.array(1, INT64)], INT64),
    "Slice": ("Slice", {}, [constant(0), constant(3), constant(0), constant(2)], INT64),
    "Slice backwards": ("Slice", {}, [constant(-1), constant(-4), constant(0), constant(-1)], INT64),
    "Concat": ("Concat", {"axis": 0}, [constant(9, -1)], INT64),
    "Unsqueeze": ("Unsqueeze", {}, [constant(0)], INT64),
    "Reshape": ("Reshape", {}, [constant(3, 1)], INT64),
    "ReduceProd": ("ReduceProd", {"keepdims": 0}, [], INT64),
    "ReduceSum": ("ReduceSum", {}, [constant(0)], INT64),
    "ReduceMax": ("ReduceMax", {"keepdims": 0}, [], INT32),
    "ReduceMin": ("ReduceMin", {"axes": [0]}, [], INT64),
    "Mod": ("Mod", {}, [constant(7, -5, 3)], INT64),
    "Neg": ("Neg", {}, [], INT64),
    "Abs": ("Abs", {}, [], INT64),
    "Pow": ("Pow", {}, [constant(2)], INT64),
    "Pow by a float": ("Pow", {}, [np.array(3, FLOAT)], INT32),
    "Clip": ("Clip", {}, [np.array(6), np.array(19)], INT64),
    "Clip between bounds that contradict each other": ("Clip", {}, [np.array(25), np.array(19)], INT64),
    "Sqrt": ("Sqrt", {}, [], FLOAT),
    "Sqrt in double": ("Sqrt", {}, [], DOUBLE),
    "Round": ("Round", {}, [], FLOAT),
    "Expand": ("Expand", {}, [constant(2, 3)], INT64),
    "Equal": ("Equal", {}, [constant(7, 3, 5)], INT64),
    "Less": ("Less", {}, [constant(20)], INT64),
    "LessOrEqual": ("LessOrEqual", {}, [constant(20, dtype=INT32)], INT32),
    "Greater": ("Greater", {}, [np.array(17.5, FLOAT)], FLOAT),
    "GreaterOrEqual": ("GreaterOrEqual", {}, [constant(20)], INT64),
    "Identity": ("Identity", {}, [], INT64),
}


def results(op_type: str, attributes: dict[str, object], inputs: list[Array]) -> Array:
    feeds = {f"input{position}": array for position, array in enumerate(inputs)}
    given = [Value(name, array.dtype.name, array.shape) for name, array in feeds.items()]
    model = build([(op_type, list(feeds), ["made"], attributes)], given, [Value("made")], {}, OPSET)
    return by_onnxruntime(read_model(model, OPERATORS), [0], feeds, ["made"])["made"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@given(first=SIZES, second=SIZES)
@settings(max_examples=5, deadline=None)
def test_symbolic_results_equal_onnx(case: str, first: list[int], second: list[int]) -> None:
    op_type, attributes, others, dtype = CASES[case]
    trace = SymbolicTrace()
    items = np.empty(3, object)
    items[:] = [trace.variable(size) for size in first]
    node = OnnxNode("n", op_type, "", 17, tuple("abcde"[: 1 + len(others)]), ("made",), attributes)
    inputs = [SymbolicArray(items, dtype), *map(SymbolicArray.of, others)]
    result = evaluate(node, inputs, results(op_type, attributes, [np.array(first, dtype), *others]))
    assert result is not None
    replayed = trace.replay(second)
    assert replayed is not None
    expected = results(op_type, attributes, [np.array(second, dtype), *others])
    np.testing.assert_array_equal(result.specialize(replayed), expected, strict=True)


def test_integer_cast_preserves_symbolic_size() -> None:
    trace, items = SymbolicTrace(), np.empty(1, object)
    items[0] = trace.variable(5)
    node = OnnxNode("n", "Cast", "", 13, ("a",), ("made",), {"to": onnx.TensorProto.INT32})
    result = evaluate(node, [SymbolicArray(items, INT64)], constant(5, dtype=INT32))
    assert result is not None and result.items[0].number == items[0].number and trace.count == 1


@pytest.mark.parametrize("second", [[5, 7], [4, 7]])
def test_where_guards_its_symbolic_condition(second: list[int]) -> None:
    trace = SymbolicTrace()
    items = np.empty(2, object)
    items[:] = [trace.variable(size) for size in (5, 9)]
    sizes = SymbolicArray(items, INT64)
    same = OnnxNode("n", "Equal", "", 13, ("a", "b"), ("made",))
    equal = evaluate(same, [sizes, SymbolicArray.of(constant(5, 1))], np.array([True, False]))
    assert equal is not None
    assert trace.replay(second) is not None
    chosen = OnnxNode("m", "Where", "", 13, ("made", "a", "b"), ("chosen",))
    assert evaluate(chosen, [equal, sizes, SymbolicArray.of(constant(5, 1))], constant(5, 1)) is not None
    assert (trace.replay(second) is not None) == (second[0] == 5)


@pytest.mark.parametrize("op_type", ["And", "Or", "Not"])
@pytest.mark.parametrize("second", [[3, 9], [9, 3], [9, 9]])
def test_logic_on_symbolic_comparisons(op_type: str, second: list[int]) -> None:
    trace = SymbolicTrace()
    items = np.empty(2, object)
    items[:] = [trace.variable(size) for size in (3, 9)]
    limit, other = constant(5, 8), np.array([True, False])
    below = OnnxNode("n", "Less", "", 13, ("a", "b"), ("below",))
    less = evaluate(below, [SymbolicArray(items, INT64), SymbolicArray.of(limit)], np.array([True, False]))
    assert less is not None
    others = [] if op_type == "Not" else [other]
    node = OnnxNode("m", op_type, "", 13, ("below", "c")[: 1 + len(others)], ("made",))
    result = evaluate(
        node, [less, *map(SymbolicArray.of, others)], results(op_type, {}, [np.array([True, False]), *others])
    )
    replayed = trace.replay(second)
    assert result is not None and replayed is not None
    expected = results(op_type, {}, [np.array(second) < limit, *others])
    np.testing.assert_array_equal(result.specialize(replayed), expected, strict=True)


@pytest.mark.parametrize(
    ("op_type", "attributes", "other", "dtype"),
    [
        ("Pow", {}, constant(5), INT64),
        ("Pow", {}, np.array(0.5, FLOAT), INT64),
        ("Pow", {}, np.array(2, FLOAT), FLOAT),
        ("Mod", {"fmod": 1}, constant(3), INT64),
        ("Clip", {}, np.array(3, FLOAT), FLOAT),
    ],
)
def test_ops_without_a_rule(op_type: str, attributes: dict[str, object], other: Array, dtype: np.dtype) -> None:
    items = np.empty(1, object)
    items[:] = [SymbolicTrace().variable(7)]
    node = OnnxNode("n", op_type, "", 17, ("a", "b"), ("made",), attributes)
    expected = results(op_type, attributes, [np.array([7], dtype), other])
    assert evaluate(node, [SymbolicArray(items, dtype), SymbolicArray.of(other)], expected) is None


def test_clip_without_lower_bound() -> None:
    trace = SymbolicTrace()
    items = np.empty(1, object)
    items[:] = [trace.variable(7)]
    node = OnnxNode("n", "Clip", "", 13, ("a", "", "b"), ("made",))
    result = evaluate(node, [SymbolicArray(items, INT64), None, SymbolicArray.of(constant(9))], constant(7))
    replayed = trace.replay([12])
    assert result is not None and replayed is not None
    assert result.specialize(replayed).tolist() == [9]


def test_shape_of_a_result_is_guarded() -> None:
    trace = SymbolicTrace()
    rows, columns = trace.variable(2), trace.variable(3)
    items, form = np.empty(4, object), np.empty(2, object)
    items[:], form[:] = [columns] * 4, [rows, 4 // rows]
    node = OnnxNode("n", "Reshape", "", 13, ("a", "b"), ("made",))
    assert evaluate(node, [SymbolicArray(items, INT64), SymbolicArray(form, INT64)], np.full((2, 2), 3)) is not None
    assert trace.replay([2, 7]) is not None
    assert trace.replay([4, 3]) is None


def test_constants_and_large_tables_are_not_traced() -> None:
    node = OnnxNode("n", "Identity", "", 13, ("a",), ("made",))
    assert evaluate(node, [SymbolicArray.of(constant(1, 2))], constant(1, 2)) is None
    table = np.empty(MOST_ELEMENTS + 1, object)
    table[:] = SymbolicTrace().variable(1)
    assert evaluate(node, [SymbolicArray(table, INT64)], np.ones(MOST_ELEMENTS + 1, np.int64)) is None


def test_failing_computations_are_not_traced() -> None:
    trace = SymbolicTrace()
    items = np.empty(1, object)
    items[:] = [trace.variable(2) - 2]
    node = OnnxNode("n", "Div", "", 13, ("a", "b"), ("made",))
    one = SymbolicArray.of(np.ones(1, DOUBLE))
    assert evaluate(node, [one, SymbolicArray(items, DOUBLE)], np.array([np.inf])) is None


def test_shape_and_size_of_symbolic_dimensions() -> None:
    trace = SymbolicTrace()
    dimensions = (trace.variable(2), 3, trace.variable(4))
    some = shape_of(OnnxNode("n", "Shape", "", 15, ("x",), ("s",), {"start": 1}), dimensions)  # type: ignore[arg-type]
    total = shape_of(OnnxNode("n", "Size", "", 13, ("x",), ("s",)), dimensions)  # type: ignore[arg-type]
    replayed = trace.replay([5, 6])
    assert replayed is not None
    assert some.specialize(replayed).tolist() == [3, 6]
    assert total.specialize(replayed) == 90
    assert isinstance(some.items[1], SymbolicNumber)
