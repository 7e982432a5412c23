import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.converters.indexing import resolve_slice
from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason


def _integers(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("shapes", [[(2, 0, 4), (2, 3, 4)], [(2, 3, 4), (2, 0, 4), (2, 1, 4)], [(2, 0, 4), (2, 0, 4)]])
def test_concat_drops_empty_inputs(shapes):
    result = check("Concat", 13, [floats(*shape) for shape in shapes], {"axis": 1}, tolerance=0)
    filled = sum(0 not in shape for shape in shapes)
    assert len(result.model.operations[0].inputs) == (filled or len(shapes))


@pytest.mark.parametrize("axis", [0, 2, -1])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("opset", opsets("Concat"))
def test_concat(opset, count, axis):
    if axis < 0 and opset < 11:
        pytest.skip("axes count from the front")
    check("Concat", opset, [floats(2, 3, 4, seed=seed) for seed in range(count)], {"axis": axis}, tolerance=0)


@pytest.mark.parametrize("sizes", [None, [1, 2, 3], [2, 0, 4]])
@pytest.mark.parametrize("opset", opsets("Split"))
def test_split(opset, sizes):
    attributes = {"axis": 1, **({"split": sizes} if sizes and opset < 13 else {})}
    inputs = [floats(2, 6), *([_integers(*sizes)] if sizes and opset >= 13 else [])]
    attributes |= {"num_outputs": 3} if opset >= 18 and not sizes else {}
    check("Split", opset, inputs, attributes, constant=[1][: len(inputs) - 1], outputs=3, tolerance=0)


def test_split_with_a_smaller_last_part():
    check("Split", 18, [floats(7)], {"num_outputs": 3}, outputs=3, tolerance=0)


def test_split_with_an_unused_output():
    conversion = check("Split", 13, [floats(6)], outputs=["y0", "y1", "y2"], tolerance=0)
    assert len(conversion.model.operations[0].outputs) == 3


_SLICES = [
    ([1], [3], None, None),
    ([-2, 0], [2**31 - 1, 10], [0, 2], None),
    ([-1], [-(2**31)], [1], [-1]),
    ([4, 1], [0, 7], [-1, 0], [-2, 2]),
    ([-100], [-200], [2], [-1]),
    ([3], [1], [1], [1]),
]


@pytest.mark.parametrize("case", _SLICES[:2])
def test_slice_with_attributes(case):
    starts, ends, axes, _ = case
    attributes = {"starts": starts, "ends": ends, **({"axes": axes} if axes else {})}
    check("Slice", 7, [floats(3, 4, 5)], attributes, tolerance=0)


@pytest.mark.parametrize("case", _SLICES)
@pytest.mark.parametrize("opset", opsets("Slice", 10))
def test_slice_with_inputs(opset, case):
    if opset == 10 and case[2] and min(case[2]) < 0:
        pytest.skip("axes count from the front")
    lists = [None if values is None else _integers(*values) for values in case]
    present = [position for position, values in enumerate(lists, 1) if values is not None]
    check("Slice", opset, [floats(3, 4, 5), *lists[: present[-1]]], constant=present, tolerance=0)


@given(st.integers(0, 6), st.integers(-20, 20), st.integers(-20, 20), st.integers(-4, 4).filter(bool))
def test_resolved_slices_follow_the_specification(size, start, end, step):
    """ONNX Slice-13 clamps start to [0, dims], but for negative steps start to [0, dims - 1], end to [-1, dims - 1]."""
    x = np.arange(size)
    first, last = (value + size if value < 0 else value for value in (start, end))
    limits = ((0, size), (0, size)) if step > 0 else ((0, size - 1), (-1, size - 1))
    expected = range(int(np.clip(first, *limits[0])), int(np.clip(last, *limits[1])), step) if size else []
    begin, stop = resolve_slice(size, start, end, step)
    assert list(x[begin:stop:step]) == list(expected)


@pytest.mark.parametrize("position", [1, 2])
def test_slice_with_computed_ends_is_refused(position):
    inputs = [floats(4), _integers(0), _integers(2)]
    kept = [index for index in (1, 2) if index != position]
    assert reason("Slice", 13, inputs, constant=kept) in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)


_PADS = [[0, 1, 2, 0], [1, 1, 1, 1], [-1, 0, 1, -2]]


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("pads", _PADS)
def test_pad_with_attributes(pads, mode):
    check("Pad", 7, [floats(3, 4)], {"pads": pads, "mode": mode, "value": 1.5}, tolerance=0)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", _PADS[:2])
@pytest.mark.parametrize("opset", opsets("Pad", 11))
def test_pad_with_inputs(opset, pads, mode):
    if mode == "wrap" and opset < 19:
        pytest.skip("mode wrap exists since version 19")
    inputs = [floats(3, 4), _integers(*pads), np.array(1.5, np.float32)]
    check("Pad", opset, inputs, {"mode": mode}, constant=[1, 2], tolerance=0)


@pytest.mark.parametrize("opset", opsets("Pad", 18))
def test_pad_of_some_axes(opset):
    inputs = [floats(3, 4, 5), _integers(1, 2, 0, 3), None, _integers(-1, 0)]
    check("Pad", opset, inputs, constant=[1, 3], tolerance=0)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 3), st.integers(0, 3)), min_size=1, max_size=3),
    st.floats(-10, 10, width=32),
)
def test_constant_padding_equals_numpy(axes, value):
    x = floats(*(size for size, _, _ in axes))
    begins, ends = [begin for _, begin, _ in axes], [end for _, _, end in axes]
    kept = x[tuple(slice(max(0, -begin), None) for begin in begins)]
    width = [(max(0, begin), end) for begin, end in zip(begins, ends, strict=True)]
    expected = np.pad(kept, width, constant_values=np.float32(value))
    inputs = [x, _integers(*begins, *ends), np.array(value, np.float32)]
    check("Pad", 13, inputs, constant=[1, 2], tolerance=0, oracle=[expected])


def test_pad_with_computed_value_is_refused():
    inputs = [floats(3), _integers(1, 1), np.array(1.0, np.float32)]
    assert reason("Pad", 13, inputs, constant=[1]) is Reason.NOT_CONSTANT


def test_pad_with_a_value_beyond_float64_is_refused():
    inputs = [np.arange(3), _integers(1, 1), np.array(2**53 + 1, np.int64)]
    assert reason("Pad", 13, inputs, constant=[1, 2]) is Reason.UNSUPPORTED_ATTRIBUTE
