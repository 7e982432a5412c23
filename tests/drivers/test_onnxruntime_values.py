"""Types that ONNX Runtime's Python interface refuses, passed through its memory."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.drivers.onnxruntime.values import _packed, _unpacked
from nnadapter.ir.operand import array_type_of
from partition.graph import ELEMENT_TYPE_OF_DTYPE
from tests.every import for_every

NAMES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "int2", "uint2"]


@pytest.mark.parametrize("name", [*NAMES, "float4_e2m1fn", "float32", "int64"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 5)])
def test_bytes_equal_onnx(name, shape):
    array = np.random.default_rng(0).integers(-2, 2, shape).astype(np.float32).astype(np.dtype(name))
    packed = _packed(array)
    assert packed == onnx.numpy_helper.from_array(array).raw_data
    unpacked = _unpacked(np.frombuffer(packed, np.uint8), name, shape)
    assert unpacked.dtype == array.dtype and unpacked.shape == shape
    np.testing.assert_array_equal(unpacked.astype(np.float32), array.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["cpu", ["fake_npu", "cpu"]])
@pytest.mark.parametrize("name", NAMES)
def test_round_trip_through_a_session(name, devices):
    element = onnx.helper.tensor_dtype_to_string(ELEMENT_TYPE_OF_DTYPE[name]).rpartition(".")[2].lower()
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["f"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Cast", ["f"], ["y"], to=ELEMENT_TYPE_OF_DTYPE[name]),
    ]
    values = [onnx.helper.make_tensor_value_info(n, ELEMENT_TYPE_OF_DTYPE[name], ["N"]) for n in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, element, values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=11)
    array = np.array([1, 0, 1, -1 if name[0] != "u" else 1, 0], np.float32).astype(getattr(ml_dtypes, name))
    with nna.InferenceSession(model, devices=devices, options=nna.Options(fallback="allow")) as session:
        (result,) = session.run(None, {"x": array})
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result.astype(np.float32), array.astype(np.float32))


ELEMENTS = {
    "string": np.array(["a", "bc", "", "d", "e"], object),
    "bool": np.array([True, False, True, True, False]),
    "int2": np.array([1, -2, 0, -1, 1]),
    "uint2": np.array([1, 2, 0, 3, 1]),
    "float8_e8m0fnu": np.array([1, 2, 4, 0.5, 8]),
}

QUANTIZED = (
    *("int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "float4_e2m1fn"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)


def elements_of(name):
    values = ELEMENTS.get(name, np.array([1, 2 if name[0] == "u" else -2, 0, 3, 1]))
    return values if name == "string" else values.astype(np.float32).astype(array_type_of(name))


def model_of(nodes, inputs, outputs, initializers=()):
    infos = [[onnx.helper.make_tensor_value_info(*value) for value in values] for values in (inputs, outputs)]
    graph = onnx.helper.make_graph(nodes, "g", *infos, initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=13)


def forms_of(name):
    """Yield models that fold, compute with, read and write values of a data type."""
    element, values, node = ELEMENT_TYPE_OF_DTYPE[name], elements_of(name), onnx.helper.make_node
    constant = node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(values, "c"))
    yield model_of([constant], [], [("c", element, [5])]), {}, values
    identity = model_of([node("Identity", ["x"], ["y"])], [("x", element, ["N"])], [("y", element, ["N"])])
    yield identity, {"x": values}, values
    if name == "string" or name.startswith("complex"):
        return
    numbers = values.astype(np.float32)
    ends = [("x", 1, [5])], [("y", 1, [5])]
    added = [constant, node("Cast", ["c"], ["d"], to=1), node("Add", ["d", "x"], ["y"])]
    yield model_of(added, *ends), {"x": numbers}, numbers * 2
    outputs = [("y", element, [5])]
    initializer = [onnx.numpy_helper.from_array(numbers, "w")]
    yield model_of([node("Cast", ["w"], ["y"], to=element)], [], outputs, initializer), {}, values
    yield model_of([constant, node("CastLike", ["x", "c"], ["y"])], ends[0], outputs), {"x": numbers}, values
    if name in QUANTIZED:
        two = [onnx.helper.make_tensor("two", 1, [], [2.0])]
        zero = node("Constant", [], ["z"], value=onnx.numpy_helper.from_array(values[2], "z"))
        read = [constant, node("DequantizeLinear", ["c", "two"], ["d"]), node("Add", ["d", "x"], ["y"])]
        yield model_of(read, *ends, two), {"x": numbers}, numbers * 3
        written = [zero, node("QuantizeLinear", ["x", "two", "z"], ["y"])]
        yield model_of(written, ends[0], outputs, two), {"x": numbers * 2}, values


@pytest.mark.slow
@for_every(name=[name for name in ELEMENT_TYPE_OF_DTYPE if "float6" not in name], devices=["fake_npu", "cpu"])
def test_every_data_type_is_folded_fed_and_returned(name, devices):
    if name == "float8_e4m3fn" and devices == "cpu":
        pytest.skip("cpu alone returns what ONNX Runtime's Python interface does: uint8")
    for model, feed, expected in forms_of(name):
        with nna.InferenceSession(model, devices=devices, options=nna.Options(fallback="allow")) as session:
            (result,) = session.run(None, feed)
        assert result.dtype == expected.dtype
        assert result.tolist() == expected.tolist()


@for_every(name=["uint4", "int4", "uint2", "int2", "float4_e2m1fn", "float8_e4m3fn", "bfloat16"])
def test_constant_outputs_of_narrow_types_are_compiled(name):
    model, feed, expected = next(forms_of(name))
    with TemporaryDirectory() as folder:
        nna.compile(model, Path(folder, "model.nna"), devices="fake_npu")
        with nna.InferenceSession(Path(folder, "model.nna")) as session:
            (result,) = session.run(None, feed)
    assert result.dtype == expected.dtype and result.tolist() == expected.tolist()


def test_a_float8_output_is_right_next_to_a_sequence():
    text = """<ir_version: 10, opset_import: ["" : 19]> g (float[3] x) => (seq(float[3]) s, float8e4m3fn[3] y) {
      s = SequenceConstruct(x, x) y = Cast<to = 17>(x) }"""
    model = onnx.parser.parse_model(text)
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="allow")) as session:
        result = session.run(["y"], {"x": np.float32([1, -2, 448])})[0]
    assert result.dtype == np.dtype("float8_e4m3fn") and result.tolist() == [1, -2, 448]
