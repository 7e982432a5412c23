"""Conversions specialized for other shapes, compared with conversions at those shapes."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnadapter.candidates import Conversions, converted, prepare, with_atoms
from nnadapter.ir import to_text
from nnadapter.onnx.preparation import Prepared, specialize
from tests.models import OCR_SHAPES, ocr_model

Shape = tuple[int, ...]

FLATTENING = """
<ir_version: 8, opset_import: ["": 17]>
flattening (float[n, 3, h, w] x) => (float[n, k] y) {
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    end = Constant <value_ints = [4]> ()
    up = Constant <value_ints = [2, 2]> ()
    padded = MaxPool <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (x)
    shape = Shape (padded)
    spatial = Slice (shape, two, end)
    larger = Mul (spatial, up)
    outer = Shape <end = 2> (padded)
    sizes = Concat <axis = 0> (outer, larger)
    resized = Resize <mode = "nearest"> (padded, , , sizes)
    count = Shape <end = 1> (x)
    flat = ReduceProd <axes = [0]> (sizes)
    rest = Div (flat, count)
    target = Concat <axis = 0> (count, rest)
    y = Reshape (resized, target)
}
"""

SELECTING = """
<ir_version: 8, opset_import: ["": 17]>
selecting (float[n, c] x) => (float[m, c] y) {
    shape = Shape (x)
    minus = Constant <value_ints = [-1, 7]> ()
    asked = Constant <value_ints = [-1, 7]> ()
    same = Equal (asked, minus)
    target = Where (same, shape, asked)
    y = Expand (x, target)
}
"""

TABLE = """
<ir_version: 8, opset_import: ["": 17]>
table (float[n, c] x) => (float[n, c] y) {
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    shape = Shape <start = 1> (x)
    axes = Constant <value_ints = [0]> ()
    width = Squeeze (shape, axes)
    steps = Range (zero, width, one)
    ramp = Cast <to = 1> (steps)
    y = Add (x, ramp)
}
"""


def same(conversions: Conversions, prepared: Prepared, shapes: dict[str, Shape]) -> None:
    specialized, conversion = conversions.of(shapes)
    alone = specialize(prepared, shapes)
    expected, plain = with_atoms(alone, converted(alone))
    assert specialized.graph.atoms == expected.graph.atoms
    assert to_text(conversion.model) == to_text(plain.model)
    assert specialized.graph.values == expected.graph.values
    assert specialized.constants.keys() == expected.constants.keys()
    assert all(np.array_equal(specialized.constants[name], value) for name, value in expected.constants.items())
    assert conversion.flops == plain.flops


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30), st.integers(1, 30)), min_size=2, max_size=5))
@settings(max_examples=20, deadline=None)
def test_computed_shapes(sizes: Sequence[tuple[int, int, int]]) -> None:
    prepared = prepare(onnx.parser.parse_model(FLATTENING))
    conversions = Conversions(prepared)
    for count, height, width in sizes:
        same(conversions, prepared, {"x": (count, 3, height, width)})


def test_template_serves_all_unguarded_sizes() -> None:
    prepared = prepare(onnx.parser.parse_model(FLATTENING))
    conversions = Conversions(prepared)
    conversions.of({"x": (2, 3, 20, 31)})
    (template,) = conversions.templates
    for height in range(5, 25):
        conversions.of({"x": (2, 3, height, height + 1)})
    assert conversions.templates == (template,)


def test_contents_without_a_rule_are_guarded() -> None:
    prepared = prepare(onnx.parser.parse_model(TABLE))
    conversions = Conversions(prepared)
    for shape in [(2, 5), (3, 5), (3, 6), (2, 5)]:
        same(conversions, prepared, {"x": shape})
    assert len(conversions.templates) == 2


@pytest.mark.parametrize("shape", [(1, 7), (2, 7)])
def test_selection_among_sizes(shape: Shape) -> None:
    prepared = prepare(onnx.parser.parse_model(SELECTING))
    conversions = Conversions(prepared)
    conversions.of({"x": (3, 7)})
    same(conversions, prepared, {"x": shape})


REFORMED = """
<ir_version: 8, opset_import: ["": 17]>
reformed (float[n, c] x) => (float[p, q] y) {
    four = Constant <value_int = 4> ()
    axes = Constant <value_ints = [0]> ()
    n = Shape <end = 1> (x)
    c = Shape <start = 1> (x)
    list = Concat <axis = 0> (c, c, c, c)
    rest = Div (four, n)
    form = Concat <axis = 0> (n, rest)
    table = Reshape (list, form)
    ramp = Cast <to = 1> (table)
    total = ReduceSum <keepdims = 0> (x)
    y = Add (ramp, total)
}
"""


def test_shape_of_a_size_computation_is_guarded() -> None:
    prepared = prepare(onnx.parser.parse_model(REFORMED))
    conversions = Conversions(prepared)
    for shape in [(2, 3), (4, 3), (1, 3), (2, 5), (4, 7)]:
        same(conversions, prepared, {"x": shape})


DIVIDED = """
<ir_version: 8, opset_import: ["": 17]>
divided (float[n, c] x) => (float[p] y) {
    one = Constant <value_float = 1.0> ()
    n = Shape <end = 1> (x)
    less = Sub (n, n)
    zero = Cast <to = 1> (less)
    huge = Div (one, zero)
    total = ReduceSum <keepdims = 0> (x)
    y = Add (huge, total)
}
"""


SINGLE = DIVIDED
DOUBLE = (
    DIVIDED.replace("one =", "single =")
    .replace("n = Shape", "one = Cast <to = 11> (single)\n n = Shape")
    .replace("<to = 1> (less)", "<to = 11> (less)")
    .replace("huge = Div (one, zero)", "wide = Div (one, zero)\n huge = Cast <to = 1> (wide)")
)


@pytest.mark.parametrize("text", [SINGLE, DOUBLE])
def test_computations_that_fail_in_python_are_not_traced(text: str) -> None:
    prepared = prepare(onnx.parser.parse_model(text))
    conversions = Conversions(prepared)
    for shape in [(2, 3), (4, 3), (4, 5)]:
        same(conversions, prepared, {"x": shape})


LARGE_TABLE = """
<ir_version: 8, opset_import: ["": 17]>
large (float[c, c] x) => (float[c, c] y) {
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    axes = Constant <value_ints = [0]> ()
    shape = Shape <end = 1> (x)
    width = Squeeze (shape, axes)
    steps = Range (zero, width, one)
    row = Unsqueeze (steps, axes)
    columns = Constant <value_ints = [1]> ()
    column = Unsqueeze (steps, columns)
    distance = Sub (row, column)
    table = Cast <to = 1> (distance)
    y = Add (x, table)
}
"""


def test_large_tables_are_not_traced() -> None:
    prepared = prepare(onnx.parser.parse_model(LARGE_TABLE))
    conversions = Conversions(prepared)
    for size in (600, 601, 600):
        same(conversions, prepared, {"x": (size, size)})
    sizes = [array.items.size for template in conversions.templates for array in template.sizes.values()]
    assert max(sizes) == 1


ADDED = """
<ir_version: 8, opset_import: ["": 17]>
added (float[n, c] x, float[m, c] z) => (float[p, c] y) { y = Add (x, z) }
"""


def test_invalid_shape_does_not_end_tracing() -> None:
    conversions = Conversions(prepare(onnx.parser.parse_model(ADDED)))
    conversions.of({"x": (4, 3), "z": (3, 3)})
    conversions.of({"x": (4, 3), "z": (4, 3)})
    assert len(conversions.templates) == 1


def test_unsuccessful_tracing_ends() -> None:
    conversions = Conversions(prepare(onnx.parser.parse_model(TABLE)))
    for width in range(2, 14):
        conversions.of({"x": (2, width)})
    assert conversions.templates == ()


ONES = """
<ir_version: 8, opset_import: ["": 17]>
ones (float[n, c] x) => (float[n, c] y) {
    one = Constant <value_float = 1.0> ()
    negative = Neg (x)
    unread = Relu (negative)
    shape = Shape (unread)
    ones = Expand (one, shape)
    y = Add (x, ones)
}
"""


def test_values_read_only_for_their_shape_need_no_conversion() -> None:
    prepared = prepare(onnx.parser.parse_model(ONES))
    conversions = Conversions(prepared)
    for shape in [(2, 3), (4, 3), (1, 1)]:
        same(conversions, prepared, {"x": shape})


def test_clearing_forgets_templates() -> None:
    conversions = Conversions(prepare(onnx.parser.parse_model(FLATTENING)))
    conversions.of({"x": (2, 3, 8, 8)})
    conversions.clear()
    assert conversions.templates == ()


def test_a_refused_node_leaves_no_template() -> None:
    text = FLATTENING.replace("y = Reshape (resized, target)", "found = NonZero (resized)\n y = Cast <to = 1> (found)")
    conversions = Conversions(prepare(onnx.parser.parse_model(text)))
    conversions.of({"x": (2, 3, 8, 8)})
    assert conversions.templates == ()


def test_fixed_shapes_are_not_traced() -> None:
    conversions = Conversions(prepare(onnx.parser.parse_model(FLATTENING.replace("n, 3, h, w", "2, 3, 8, 8"))))
    conversions.of({"x": (2, 3, 8, 8)})
    assert conversions.templates == ()


@pytest.mark.parametrize("kind", OCR_SHAPES)
def test_text_recognition_models(kind: str) -> None:
    prepared = prepare(ocr_model(kind))
    conversions = Conversions(prepared)
    for shape in OCR_SHAPES[kind]:
        same(conversions, prepared, {"x": shape})
    assert 1 <= len(conversions.templates) <= 2
