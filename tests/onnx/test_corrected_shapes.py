from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnxruntime.capi import onnxruntime_pybind11_state as native

import nnadapter as nna
from nnadapter.candidates import prepare
from nnadapter.onnx import build, parse
from nnadapter.onnx.preparation import specialize
from partition import Value

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g'
SAME = ("SAME_UPPER", "SAME_LOWER")


def expected_shape(model, arrays):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, arrays)[-1].shape
    except (native.Fail, native.RuntimeException, native.InvalidArgument):
        return None


def check(opset, op_type, attributes, *shapes):
    arrays = {f"input{position}": np.ones(shape, np.float32) for position, shape in enumerate(shapes)}
    inputs = [Value(name, "float32", array.shape) for name, array in arrays.items()]
    model = build([(op_type, list(arrays), ["y"], attributes)], inputs, [Value("y", "float32")], {}, opset)
    expected = expected_shape(model, arrays)
    assume(expected is not None)
    assert specialize(prepare(model), {}).graph.value("y").shape == expected


@st.composite
def poolings(draw):
    rank = draw(st.integers(1, 3))
    lists = {"kernel_shape": (1, 4), "strides": (1, 4), "dilations": (1, 2)}
    attributes = {name: draw(st.lists(st.integers(*of), min_size=rank, max_size=rank)) for name, of in lists.items()}
    attributes["ceil_mode"] = draw(st.integers(0, 1))
    attributes["auto_pad"] = draw(st.sampled_from(("NOTSET", "VALID", *SAME)))
    if attributes["auto_pad"] == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, size - 1)) for size in attributes["kernel_shape"] * 2]
    return attributes, draw(st.lists(st.integers(3, 9), min_size=rank, max_size=rank))


@pytest.mark.slow
@given(
    pooling=poolings(), case=st.sampled_from((("MaxPool", 11), ("AveragePool", 19), ("LpPool", 18), ("MaxPool", 22)))
)
def test_poolings(pooling, case):
    attributes, sizes = pooling
    check(case[1], case[0], attributes, (1, 2, *sizes))


@pytest.mark.slow
@given(st.data())
def test_transposed_convolutions(data):
    rank = data.draw(st.integers(1, 3))
    of = {"kernel": (1, 4), "strides": (1, 4), "dilations": (1, 2), "sizes": (3, 6), "group": (1, 2)}
    lists = {name: data.draw(st.lists(st.integers(*each), min_size=rank, max_size=rank)) for name, each in of.items()}
    kernel, sizes, group = lists.pop("kernel"), lists.pop("sizes"), lists.pop("group")[0]
    extra = [data.draw(st.integers(0, stride - 1)) for stride in lists["strides"]]
    attributes = {**lists, "output_padding": extra, "group": group, "auto_pad": data.draw(st.sampled_from(SAME))}
    check(13, "ConvTranspose", attributes, (1, 2, *sizes), (2, 2, *kernel))


@pytest.mark.parametrize(
    "nodes",
    [
        "a = AveragePool<ceil_mode = 1, kernel_shape = [1, 2], strides = [3, 1]>(x) y = Relu(a)",
        "a = MaxPool<ceil_mode = 1, kernel_shape = [1, 2], strides = [3, 1]>(x) "
        "b = MaxPool<ceil_mode = 1, kernel_shape = [1, 1], strides = [1, 3]>(a) s = Shape(b) y = Expand(b, s)",
        'a = ConvTranspose<auto_pad = "SAME_UPPER", output_padding = [1, 1], strides = [2, 2]>(x, w) y = Relu(a)',
    ],
)
def test_wrongly_inferred_shapes_are_corrected_before_planning(nodes):
    model = parse(f"{HEAD} (float[1, 2, n, 5] x, float[2, 2, 3, 3] w) => (float[a, b, c, d] y) {{ {nodes} }}")
    feed = {"x": np.ones((1, 2, 3, 5), np.float32), "w": np.ones((2, 2, 3, 3), np.float32)}
    values = specialize(prepare(model), {name: array.shape for name, array in feed.items()}).graph.values
    expected = expected_shape(model, feed)
    assert values["y"].shape == expected
    with nna.InferenceSession(model, devices=["fake_npu", "cpu"]) as session:
        assert session.run(None, feed)[0].shape == expected
        assert "fake_npu" in {step.device for step in session.provenance.steps}


def test_gather_nd_of_one_element_is_a_scalar_on_a_device():
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float y) <int64[2] at = {1, 2}> {
        a = GatherND(x, at)
        y = Neg(a)
    }"""
    model = parse(text)
    with nna.InferenceSession(model, devices="fake_npu", options={"fallback": "forbid"}) as session:
        (got,) = session.run(None, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert got.shape == () and got == -5


def test_oversized_window_is_an_error():
    text = f"""{HEAD} (float[n, 8, h, w] x) => (float[a, b, c, d] y) <float[4] scales = {{1, 1, 0.5, 0.5}}> {{
        t = AveragePool <kernel_shape = [3, 3], ceil_mode = 1> (x)
        y = Resize (t, , scales)
    }}"""
    with nna.InferenceSession(parse(text), devices="fake_npu", options={"fallback": "allow"}) as session:
        with pytest.raises(nna.errors.InvalidModelError):
            session.run(None, {"x": np.ones((3, 8, 1, 11), np.float32)})
        assert session.run(None, {"x": np.ones((3, 8, 6, 11), np.float32)})[0].shape[:2] == (3, 8)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("cache", "keys"), [(False, "s"), (True, "s"), (True, "3")])
def test_attention_scores_have_the_number_of_keys(cache, keys, packed):
    sizes = f"1, {keys}, 8" if packed else f"1, 2, {keys}, 4"
    parts = ", ".join(f"float[{sizes}] {name}" for name in "qkv")
    heads = "q_num_heads = 2, kv_num_heads = 2, " if packed else ""
    nodes = f"y, a, b, p = Attention<{heads}is_causal = 1>(q, k, v{', , c, d' if cache else ''}) z = Relu(p)"
    inputs = f"{parts}, float[1, 2, t, 4] c, float[1, 2, t, 4] d"
    model = parse(f'<ir_version: 10, opset_import: ["" : 24]> g ({inputs}) => (float[e, f, g, h] z) {{ {nodes} }}')
    with nna.InferenceSession(model, devices="fake_npu", options={"fallback": "forbid"}) as session:
        for count, before in ((3, 5), (3, 1), (3, 0)) if keys == "3" else ((3, 5), (4, 2), (2, 0)):
            shape = (1, count, 8) if packed else (1, 2, count, 4)
            feed = {name: np.ones(shape, np.float32) for name in "qkv"}
            feed.update((name, np.ones((1, 2, before, 4), np.float32)) for name in "cd")
            assert session.run(None, feed)[0].shape == expected_shape(model, feed)
            assert all(step.device == "fake_npu" for step in session.provenance.steps)
