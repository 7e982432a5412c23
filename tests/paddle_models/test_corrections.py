"""Corrections of Paddle structures and converted models, without Paddle."""

from __future__ import annotations

import struct

import numpy as np
import onnx
import onnxruntime
import pytest

from nnadapter.paddle import worker
from nnadapter.paddle.repair import (
    draws_numbers,
    mark,
    operations_of,
    repair_model,
    rewrite,
    unsupported_in,
    without_rounding,
)
from nnadapter.paddle.worker import _array_difference, compared
from tests.models import parse


def program(*operations):
    return {"regions": [{"blocks": [{"ops": list(operations)}]}]}


def attribute(name, kind, value):
    return {"N": name, "AT": {"#": kind, "D": value}}


def test_doubles_read_as_floats_become_floats():
    scale = {"#": "0.a_array", "D": [{"#": "0.a_f64", "D": 2.0}]}
    result = program({"#": "1.nearest_interp", "A": [{"N": "scale", "AT": scale}]}, {"#": "p", "A": [0, 1, "w"]})
    assert rewrite(result)
    assert scale["D"] == [{"#": "0.a_f32", "D": 2.0}]
    assert not rewrite(result)


@pytest.mark.parametrize(
    ("operation", "name"), [("group_norm", "epsilon"), ("leaky_relu", "negative_slope"), ("pad3d", "pad_value")]
)
def test_single_double_becomes_a_float(operation, name):
    given = attribute(name, "0.a_f64", 0.25)
    assert rewrite(program({"#": f"1.{operation}", "A": [given]}))
    assert given["AT"] == {"#": "0.a_f32", "D": 0.25}


def gelu(number, *, by_tanh=True, dtype="0.t_f32"):
    typed = {"#": "0.t_dtensor", "D": [{"#": dtype}, [-1, 8], "NCHW", [], 0]}
    made = {"#": "1.gelu", "A": [attribute("approximate", "0.a_bool", by_tanh)], "I": [{"%": number - 1}]}
    return {**made, "O": [{"%": number, "TT": typed}]}


def test_gelu_by_tanh_is_decomposed_everywhere():
    loop = {"#": "1.while", "regions": [{"blocks": [{"args": [{"#": 40}, {"%": 50}], "ops": [gelu(3)]}]}]}
    result = program({"#": "1.data", "O": [{"%": 1}]}, gelu(2), loop, gelu(4, by_tanh=False), gelu(5, dtype="0.t_bf16"))
    assert rewrite(result)
    outer = result["regions"][0]["blocks"][0]["ops"]
    inner = loop["regions"][0]["blocks"][0]["ops"]
    assert [each["O"][0]["%"] for each in outer if each["#"] == "1.gelu"] == [4, 5]
    assert not [each for each in inner if each["#"] == "1.gelu"]
    numbers = [each["O"][0]["%"] for each in (*outer, *inner) if "O" in each]
    assert len(set(numbers)) == len(numbers) and {2, 3} <= {*numbers} and 50 not in numbers
    assert not rewrite(result)


def test_constants_move_before_loops_that_read_them():
    axes = {"#": "1.full_int_array", "A": []}
    branch = {"#": "1.if", "regions": [{"blocks": [{"ops": [axes, {"#": "1.sum"}]}]}]}
    loop = {"#": "1.while", "regions": [{"blocks": [{"ops": [branch]}]}]}
    result = program({"#": "1.data"}, loop)
    assert rewrite(result)
    assert [each["#"] for each in result["regions"][0]["blocks"][0]["ops"]] == ["1.data", "1.full_int_array", "1.while"]
    assert operations_of(result) == {"full_int_array", "sum"}


@pytest.mark.parametrize(("name", "attributes", "draws"), [
    ("1.dropout", [attribute("is_test", "0.a_bool", True)], False), ("1.relu", [], False),
    ("1.dropout", [attribute("is_test", "0.a_bool", False)], True), ("1.gaussian", [], True),
])  # fmt: skip
def test_dropout_is_random_only_in_training(name, attributes, draws):
    assert draws_numbers(program({"#": "p", "A": [0, "w"]}, {"#": name, "A": attributes})) is draws


def test_operations_are_found_under_the_names_of_the_converter():
    listed = ["elementwise_add", "batch_norm", "array_write_", "relu"]
    assert unsupported_in(["add", "batch_norm_", "array_write_", "relu", "svd"], listed) == ["svd"]


@pytest.mark.parametrize(("name", "value"), [("bit_length", 4), ("qmin", -8), ("qmax", 448)])
def test_other_bit_widths_are_refused(name, value):
    given = {"bit_length": 8, "qmin": -128, "qmax": 127, name: value}
    attributes = [attribute(each, "0.a_i32", number) for each, number in given.items()]
    with pytest.raises(ValueError, match=f"{name} {value}"):
        mark(program({"#": "1.quantize_linear", "A": attributes}))


WRITTEN = """<ir_version: 9, opset_import: ["" : 19]>
g (float[2, 3] x) => (float[2, 3] y) <float scale = {1.5}, float zero = {0.0}> {
    q_divisor = Constant <value = float {448.0}> ()
    q_scale = Div(scale, q_divisor)
    q_zero = Cast <to = 17> (zero)
    quantized = QuantizeLinear <axis = 1> (x, q_scale, q_zero)
    reals = Cast <to = 1> (quantized)
    d_divisor = Constant <value = float {112.0}> ()
    d_scale = Div(scale, d_divisor)
    d_zero = Cast <to = 17> (zero)
    again = Cast <to = 17> (reals)
    dequantized = DequantizeLinear <axis = 1> (again, d_scale, d_zero)
    low = Constant <value = float {-448.0}> ()
    high = Constant <value = float {448.0}> ()
    above = Max(dequantized, low)
    y = Min(above, high)
}"""


def as_written():
    model = parse(WRITTEN)
    for node in model.graph.node:
        if node.op_type == "Constant":
            (value,) = node.attribute[0].t.float_data
            node.attribute[0].t.ClearField("float_data")
            node.attribute[0].t.raw_data = struct.pack("<f", value)
    return model


def run(contents, x):
    return onnxruntime.InferenceSession(contents, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_marked_roundings_become_integers():
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    contents = repair_model(as_written().SerializeToString(), [], 2)
    np.testing.assert_allclose(run(contents, x), np.clip(np.rint(x / 1.5 * 127), -128, 127) * 1.5 / 127, rtol=1e-6)
    np.testing.assert_array_equal(run(without_rounding(contents), x), x)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda model: model.graph.node[1].ClearField("op_type"), "no producer of type Div"),
        (lambda model: model.graph.node[0].attribute[0].t.ClearField("raw_data"), "an unexpected divisor"),
        (lambda model: setattr(model.graph.node[2].attribute[0], "i", 2), "to type 2, expected 17"),
        (lambda model: setattr(model.graph.node[12], "op_type", "Add"), "0 nodes of type Max"),
    ],
)
def test_unexpected_quantization_nodes_are_refused(change, match):
    model = as_written()
    change(model)
    with pytest.raises(ValueError, match=match):
        repair_model(model.SerializeToString(), [], 2)
    with pytest.raises(ValueError, match="the converter wrote 2 quantizing nodes for 3 quantizing operations"):
        repair_model(as_written().SerializeToString(), [], 3)


def test_outputs_are_renamed_and_unread_nodes_removed():
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float x, bool b) => (float[1] a) <float w = {1.0}, float dead = {2.0}> {
        unread = Neg(dead)
        a = If (b) <
            then_branch = t () => (float c) { c = Add(x, w) }, else_branch = e () => (float d) { d = Neg(x) }
        >
    }"""
    model = onnx.load_from_string(repair_model(parse(text).SerializeToString(), ["fc.tmp_0"]))
    assert [each.name for each in model.graph.output] == ["fc.tmp_0"]
    assert [node.op_type for node in model.graph.node] == ["If"]
    assert [each.name for each in model.graph.initializer] == ["w"]


def test_scalar_output_has_no_dimensions():
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[N] x) => (float y, float[N] z) <int64[1] one = {-1}> {
        sum = ReduceSum<keepdims = 0>(x)
        y = Reshape(sum, one)
        z = Add(x, y)
    }"""
    contents = repair_model(parse(text).SerializeToString(), [])
    session = onnxruntime.InferenceSession(contents, providers=["CPUExecutionProvider"])
    y, z = session.run(None, {"x": np.array([1, 2], np.float32)})
    assert (y.shape, float(y), z.tolist()) == ((), 3.0, [4.0, 5.0])


HALF = np.array([1.0, 2.0], np.float16)


@pytest.mark.parametrize(
    ("found", "expected", "wrong", "doubt"),
    [
        (np.ones((1, 2)), np.ones((2, 2)), r"is float64[1, 2], and float64[2, 2] in Paddle", ""),
        (np.ones(3, np.int64), np.ones(3, np.int32), "is int64[3]", ""),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0001]), "", ""),
        (np.array([1.0, 2.0]), np.array([1.0, 2.001]), "", "differs by 0.001, of values up to 2"),
        (np.array([1.0, 2.0]), np.array([1.0, 2.01]), "differs by 0.01", ""),
        (HALF, HALF + np.float16(0.01), "", ""),
        (np.array([np.nan]), np.array([1.0]), "is not finite", ""),
        (np.array([1.0]), np.array([np.nan]), "is not finite", ""),
        (np.array([np.inf]), np.array([-np.inf]), "is not finite", ""),
        (np.array([1, 2]), np.array([1, 3]), "differs in 50%", ""),
        (np.array([np.inf, np.nan]), np.array([np.inf, np.nan]), "", ""),
        (np.ones(0), np.ones(0), "", ""),
    ],
)
def test_tolerance_of_converted_models(found, expected, wrong, doubt):
    compared = _array_difference(found, expected)
    assert compared.wrong.startswith(wrong) and compared.doubt == doubt and bool(compared.wrong) == bool(wrong)


class Predictor:
    """Substitute for Paddle's predictor, for a network with one input and one output."""

    def __init__(self, function):
        self.function, self.value = function, None

    def get_input_names(self):
        return ["x"]

    def get_output_names(self):
        return ["y"]

    def get_input_handle(self, name):
        return self

    get_output_handle = get_input_handle

    def copy_from_cpu(self, value):
        self.value = value

    def copy_to_cpu(self):
        return self.value

    def run(self):
        self.value = self.function(self.value)


def _root(x):
    with np.errstate(invalid="ignore"):
        return np.sqrt(x)


@pytest.mark.parametrize(("node", "function", "wrong"), [
    ("LeakyRelu <alpha = 0.3>", lambda x: np.where(x < 0, np.float32(0.3) * x, x), ""),
    ("LeakyRelu <alpha = 0.1>", lambda x: np.where(x < 0, np.float32(0.3) * x, x), "output 'y' differs by"),
    ("Sqrt", _root, ""),
])  # fmt: skip
def test_errors_on_negative_inputs_are_detected(node, function, wrong, monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "_predictor", lambda *files: Predictor(function))
    model = parse(
        f"""<ir_version: 9, opset_import: ["" : 19]> g (float[4, 8] x) => (float[4, 8] y) {{ y = {node} (x) }}"""
    )
    result = compared(model.SerializeToString(), tmp_path, tmp_path, draws=False)
    assert result.wrong.startswith(wrong) and bool(result.wrong) is bool(wrong) and not result.doubt


def tensor(number, *shape, dtype="0.t_f32"):
    return {"%": number, "TT": {"#": "0.t_dtensor", "D": [{"#": dtype}, list(shape), "NCHW", [], 0]}}


def numbers(name, *values):
    return attribute(name, "0.a_array", [{"#": "0.a_i32", "D": value} for value in values])


@pytest.mark.parametrize("sizes", [(5, 7), (-1, -1)])
@pytest.mark.parametrize("size", [9, 10])
def test_an_output_size_of_a_transposed_convolution_becomes_padding(sizes, size):
    target = {"#": "1.full_int_array", "A": [numbers("value", size, size + 5)], "O": [tensor(3, 2, dtype="0.t_i64")]}
    convolution = {
        "#": "1.conv2d_transpose",
        "A": [
            *(
                numbers("strides", 2, 3),
                numbers("paddings", 1, 1),
                numbers("output_padding"),
                numbers("dilations", 1, 1),
            ),
            attribute("padding_algorithm", "0.a_str", "EXPLICIT"),
        ],
        "I": [{"%": 1}, {"%": 2}, {"%": 3}],
        "O": [tensor(4, 1, 2, size, size + 5)],
    }
    data = {"#": "1.data", "O": [tensor(1, 1, 4, *sizes)]}, {"#": "p", "O": tensor(2, 4, 2, 3, 3)}
    structure = program(*data, target, convolution)
    assert rewrite(structure)
    (result,) = (each for each in structure["regions"][0]["blocks"][0]["ops"] if each["#"] == "1.conv2d_transpose")
    # The defaults are (n - 1) * stride - 2 + 3: 9, 11, ... for stride 2, and 13, 16, 19, ... for stride 3.
    assert result["A"][2] == numbers("output_padding", size - 9, (size + 5 - 13) % 3)


def test_sizes_for_expansion_in_branches_come_before():
    norm = {
        "#": "1.layer_norm",
        "A": [attribute("begin_norm_axis", "0.a_i32", 1)],
        "I": [{"%": 1}, {"%": 0}, {"%": 2}],
        "O": [tensor(3, -1, 4, 5)],
    }
    branch = {"#": "1.if", "regions": [{"blocks": [{"ops": [norm]}]}]}
    data = {"#": "1.data", "O": [tensor(1, -1, 4, 5)]}, {"#": "p", "O": tensor(2, 20)}
    structure = program(*data, branch)
    assert rewrite(structure)
    outer = [each["#"] for each in structure["regions"][0]["blocks"][0]["ops"]]
    inner = branch["regions"][0]["blocks"][0]["ops"]
    assert outer == ["1.data", "p", "1.full_int_array", "1.if"]
    assert [each["#"] for each in inner] == ["1.full", "1.reshape", "1.layer_norm"]
    assert inner[2]["I"] == [{"%": 1}, {"%": inner[0]["O"][0]["%"]}, {"%": inner[1]["O"][0]["%"]}]
    assert not rewrite(program(data[0], {**norm, "I": [{"%": 1}, {"%": 0}, {"%": 0}]}))
