"""Bits of quantized and float16 models on fake_npu, against the formulas of docs/accuracy.md written in numpy.

Quantized activations have 8 or 16 bits, weights 8. Sums are int64 here.
"""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

import nnadapter as nna

ACTIVATIONS = ("int8", "uint8", "int16", "uint16")
SEEDED = np.random.default_rng(0)


class Format:
    """Integers of a data type with scale and zero point, one each or one per index of `axis`."""

    def __init__(self, dtype, scale, zero_point=0, axis=None):
        self.dtype, self.axis = np.dtype(dtype), axis
        self.scale, self.zero_point = np.asarray(scale, np.float32), np.asarray(zero_point, np.int64)

    def along(self, numbers, rank):
        return numbers.reshape([-1 if dimension == self.axis else 1 for dimension in range(rank)])

    def random(self, *shape):
        limits = np.iinfo(self.dtype)
        x = SEEDED.integers(limits.min, limits.max + 1, shape, self.dtype)
        x.reshape(-1)[: min(2, x.size)] = [limits.min, limits.max][: min(2, x.size)]
        return x

    def centered(self, x):
        return x.astype(np.int64) - self.along(self.zero_point, x.ndim)

    def reals(self, x):
        return self.centered(x).astype(np.float32) * self.along(self.scale, x.ndim)

    def saturated(self, rounded):
        limits = np.iinfo(self.dtype)
        whole = np.clip(rounded.astype(np.float64), -(2.0**40), 2.0**40).astype(np.int64)
        return np.clip(whole + self.zero_point, limits.min, limits.max).astype(self.dtype)

    def integers(self, reals):
        assert reals.dtype == np.float32
        return self.saturated(np.rint(reals / self.scale))


def requantized(sums, x, w, y, channels, bias=None):
    """Return int64 sums as integers of `y`; float32 numbers, one operation after the other."""
    along = [1] * sums.ndim
    along[channels] = -1
    if bias is not None:
        sums = sums + bias.astype(np.int64).reshape(along)
    factor = (x.scale * w.scale.reshape(along if w.axis is not None else ())) / y.scale
    assert factor.dtype == np.float32
    return y.saturated(np.rint(sums.astype(np.float32) * factor))


class Case:
    """Model of one node between DequantizeLinear and QuantizeLinear, with integer inputs and outputs."""

    def __init__(self):
        self.nodes, self.constants, self.inputs, self.feed = [], [], [], {}

    def constant(self, array):
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def parameters(self, form):
        dtype = np.int32 if form.dtype == np.int32 else form.dtype
        return self.constant(form.scale), self.constant(form.zero_point.astype(dtype))

    def operand(self, x, form, *, is_constant=False):
        name = f"v{len(self.nodes)}"
        if is_constant:
            source = self.constant(x)
        else:
            source = f"x{len(self.inputs)}"
            element = helper.np_dtype_to_tensor_dtype(x.dtype)
            self.inputs.append(helper.make_tensor_value_info(source, element, x.shape))
            self.feed[source] = x
        attributes = {} if form.axis is None else {"axis": form.axis}
        self.nodes.append(helper.make_node("DequantizeLinear", [source, *self.parameters(form)], [name], **attributes))
        return name

    def result(self, op_type, operands, form, *, then=None, device="fake_npu", **attributes):
        """Return the integers that fake_npu computes."""
        self.nodes.append(helper.make_node(op_type, operands, ["real"], "op", **attributes))
        last = "real"
        if then is not None:
            self.nodes.append(helper.make_node(then, [last], [last := "activated"]))
        self.nodes.append(helper.make_node("QuantizeLinear", [last, *self.parameters(form)], ["y"]))
        output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(form.dtype), None)
        graph = helper.make_graph(self.nodes, "g", self.inputs, [output], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        with nna.InferenceSession(model, devices=[device], options=nna.Options(fallback="forbid")) as session:
            assert session.report().coverage.nodes == 1
            return session.run(None, self.feed)[0]


def activation(dtype, steps=1.0):
    """Return a format of activations in [-3, 5] or so, `steps` times as fine as the data type allows."""
    limits = np.iinfo(dtype)
    scale = 8 / (int(limits.max) - int(limits.min)) / steps
    return Format(dtype, scale, round(int(limits.min) + 3 / 8 * (int(limits.max) - int(limits.min))))


def weights(outputs, axis, *, per_channel, symmetric):
    dtype = "int8" if symmetric else "uint8"
    if not per_channel:
        return Format(dtype, 0.017, 0 if symmetric else 119)
    points = np.zeros(outputs, int) if symmetric else SEEDED.integers(90, 160, outputs)
    return Format(dtype, SEEDED.uniform(0.001, 0.05, outputs), points, axis)


def bias_of(x, w, outputs, size):
    scale = x.scale * w.scale
    axis = None if w.axis is None else 0
    return SEEDED.integers(-size, size, outputs, np.int32), Format("int32", scale, np.zeros(scale.shape, int), axis)


WEIGHTS = [(per_channel, symmetric) for per_channel in (False, True) for symmetric in (False, True)]


def windows(x, kernel, strides, pads):
    """Return [N, C, OH, OW, kH, kW], padded with 0."""
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    views = np.lib.stride_tricks.sliding_window_view(padded, kernel, (2, 3))
    return views[:, :, :: strides[0], :: strides[1]]


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize(("per_channel", "symmetric"), WEIGHTS)
@pytest.mark.parametrize("group", [1, 2, 6])
def test_convolution(dtype, per_channel, symmetric, group):
    x, y = activation(dtype), activation(dtype, 0.05)
    w = weights(6, 0, per_channel=per_channel, symmetric=symmetric)
    image, filters = x.random(2, 6, 7, 5), w.random(6, 6 // group, 3, 2)
    bias, bias_format = bias_of(x, w, 6, 2**20)
    case = Case()
    names = [case.operand(image, x), case.operand(filters, w, is_constant=True)]
    names.append(case.operand(bias, bias_format, is_constant=True))
    got = case.result("Conv", names, y, pads=[1, 0, 1, 1], strides=[2, 1], group=group)
    seen = windows(x.centered(image), (3, 2), (2, 1), (1, 0, 1, 1))
    seen = seen.reshape(2, group, 6 // group, *seen.shape[2:])
    grouped = w.centered(filters).reshape(group, 6 // group, *filters.shape[1:])
    sums = np.einsum("ngchwij,gocij->ngohw", seen, grouped).reshape(2, 6, *seen.shape[3:5])
    np.testing.assert_array_equal(got, requantized(sums, x, w, y, 1, bias))


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize(("per_channel", "symmetric"), WEIGHTS)
@pytest.mark.parametrize(("group", "rank"), [(1, 2), (1, 1), (2, 2)])
def test_transposed_convolution(dtype, per_channel, symmetric, group, rank):
    if per_channel and group > 1:
        pytest.skip("scales along an axis that groups share")
    x, y = activation(dtype), activation(dtype, 0.05)
    w = weights(3, 1, per_channel=per_channel, symmetric=symmetric)
    size, taps = (3, 4)[2 - rank :], (2, 3)[2 - rank :]
    image, filters = x.random(2, 4, *size), w.random(4, 3, *taps)
    bias, bias_format = bias_of(x, w, 3 * group, 2**20)
    case = Case()
    names = [case.operand(image, x), case.operand(filters, w, is_constant=True)]
    names.append(case.operand(bias, bias_format, is_constant=True))
    got = case.result("ConvTranspose", names, y, strides=[2] * rank, group=group, then="Relu")
    sums = np.zeros((2, 3 * group, *(2 * (count - 1) + tap for count, tap in zip(size, taps, strict=True))), np.int64)
    for channel in range(4):
        outputs = slice(3 * (channel * group // 4), 3 * (channel * group // 4) + 3)
        for place in np.ndindex(*size):
            where = tuple(slice(2 * at, 2 * at + tap) for at, tap in zip(place, taps, strict=True))
            pixels = x.centered(image)[(slice(None), channel, *place)].reshape(2, *[1] * (rank + 1))
            sums[(slice(None), outputs, *where)] += pixels * w.centered(filters)[channel]
    expected = requantized(sums, x, w, y, 1, bias)
    np.testing.assert_array_equal(got, np.maximum(expected, y.zero_point.astype(dtype)))


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize(("per_channel", "symmetric"), WEIGHTS)
@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
@pytest.mark.parametrize("depth", [1, 19, 700])
def test_products_with_weights(dtype, per_channel, symmetric, op_type, depth):
    x, y = activation(dtype), activation(dtype, 1 / depth**0.5)
    w = weights(5, 1, per_channel=per_channel, symmetric=symmetric)
    rows, matrix = x.random(3, depth), w.random(depth, 5)
    case = Case()
    names, bias = [case.operand(rows, x), case.operand(matrix, w, is_constant=True)], None
    if op_type == "Gemm":
        bias, bias_format = bias_of(x, w, 5, 2**31 - 1)
        names.append(case.operand(bias, bias_format, is_constant=True))
    sums = x.centered(rows) @ w.centered(matrix)
    np.testing.assert_array_equal(case.result(op_type, names, y), requantized(sums, x, w, y, -1, bias))


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("other", ACTIVATIONS)
def test_product_of_activations(dtype, other):
    x, z, y = activation(dtype), activation(other), activation(dtype, 0.05)
    first, second = x.random(2, 3, 30), z.random(2, 30, 4)
    case = Case()
    got = case.result("MatMul", [case.operand(first, x), case.operand(second, z)], y)
    np.testing.assert_array_equal(got, requantized(x.centered(first) @ z.centered(second), x, z, y, -1))


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_sums_beyond_32_bits(dtype):
    """Sums of 5000 products of 17 and 9 bits need 39 bits."""
    limits = np.iinfo(dtype)
    x, w = Format(dtype, 1.0, limits.max), Format("int8", 1.0)
    y = Format(dtype, 2.0**23, int(limits.max) // 2)
    rows, matrix = np.full((2, 5000), limits.min, dtype), np.full((5000, 2), -128, np.int8)
    rows[1, ::2], matrix[:, 1] = limits.max - 1, 127
    sums = x.centered(rows) @ w.centered(matrix)
    assert np.abs(sums).max() > 2**34
    case = Case()
    got = case.result("MatMul", [case.operand(rows, x), case.operand(matrix, w, is_constant=True)], y)
    np.testing.assert_array_equal(got, requantized(sums, x, w, y, -1))
    assert len(np.unique(got)) == 4


@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_halves_round_to_even_and_results_saturate(dtype):
    limits = np.iinfo(dtype)
    x, w, y = Format(dtype, 0.5, 5), Format("int8", 0.5), Format(dtype, 0.5, 7)
    rows = np.arange(-20, 21) if dtype.startswith("int") else np.arange(41)
    rows = np.append(rows, [limits.min, limits.max]).astype(dtype).reshape(-1, 1)
    case = Case()
    names = [case.operand(rows, x), case.operand(np.array([[1, 127]], np.int8), w, is_constant=True)]
    got = case.result("MatMul", names, y)
    halves = (rows.astype(int) - 5) * np.array([[1, 127]]) / 2  # exact
    np.testing.assert_array_equal(got, np.clip(np.round(halves) + 7, limits.min, limits.max).astype(dtype))
    assert {*got[-2:, 1].tolist()} == {limits.min, limits.max}


@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_relu_after_a_product(dtype):
    x, w, y = activation(dtype), Format("int8", 0.02), activation(dtype)
    rows, matrix = x.random(4, 6), w.random(6, 8)
    case = Case()
    names = [case.operand(rows, x), case.operand(matrix, w, is_constant=True)]
    got = case.result("MatMul", names, y, then="Relu")
    expected = requantized(x.centered(rows) @ w.centered(matrix), x, w, y, -1)
    np.testing.assert_array_equal(got, np.maximum(expected, y.zero_point.astype(dtype)))


ELEMENTWISE = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("op_type", ELEMENTWISE)
def test_elementwise_operations_are_float32(dtype, op_type):
    x, z, y = activation(dtype), activation(dtype, 3.0), activation(dtype, 0.4)
    first, second = x.random(90, 40), z.random(40)
    if op_type == "Div":
        second[second == z.zero_point] += 1
    case = Case()
    got = case.result(op_type, [case.operand(first, x), case.operand(second, z)], y)
    np.testing.assert_array_equal(got, y.integers(ELEMENTWISE[op_type](x.reals(first), z.reals(second))))


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("same", [True, False])
def test_pools(dtype, op_type, same):
    """Averages add each column of a window from top to bottom, then the columns, and multiply by 1 / 6 in float32."""
    x = activation(dtype)
    y = x if same else activation(dtype, 1.5)
    image = x.random(2, 3, 9, 8)
    case = Case()
    got = case.result(op_type, [case.operand(image, x)], y, kernel_shape=[3, 2], strides=[1, 2])
    seen = windows(x.reals(image), (3, 2), (1, 2), (0, 0, 0, 0))
    reals = seen.max((-2, -1))
    if op_type == "AveragePool":
        columns = (seen[..., 0, :] + seen[..., 1, :]) + seen[..., 2, :]
        reals = (columns[..., 0] + columns[..., 1]) * (np.float32(1) / np.float32(6))
    np.testing.assert_array_equal(got, y.integers(reals))


FUNCTIONS = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Exp": np.exp,
    "Relu": lambda x: np.maximum(x, 0),
    "Neg": np.negative,
    "Abs": np.abs,
}
EXACT = ("Relu", "Neg", "Abs")


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_functions(dtype, op_type):
    """Functions are float32's: where the exact result is near a half, either integer is right."""
    x, y = activation(dtype), activation(dtype, 0.7)
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, int(limits.max) + 1).astype(dtype)
    case = Case()
    got = case.result(op_type, [case.operand(every, x)], y)
    exact = FUNCTIONS[op_type](x.reals(every).astype(np.float64))
    if op_type in EXACT:
        np.testing.assert_array_equal(got, y.integers(exact.astype(np.float32)))
    place = np.clip(exact / y.scale.astype(np.float64) + y.zero_point, limits.min, limits.max)
    assert np.abs(got - place).max() <= 0.5 + 2.0**-7


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("op_type", ["Softmax", "GlobalAveragePool", "ReduceMean"])
def test_sums_of_reals_are_near(dtype, op_type):
    x, y = activation(dtype), activation(dtype, 2.0)
    image = x.random(2, 5, 6, 7)
    case = Case()
    got = case.result(op_type, [case.operand(image, x)], y)
    reals = x.reals(image).astype(np.float64)
    if op_type == "Softmax":
        powers = np.exp(reals - reals.max(-1, keepdims=True))
        exact = powers / powers.sum(-1, keepdims=True)
    else:
        exact = reals.mean((2, 3) if op_type == "GlobalAveragePool" else None, keepdims=True)
    limits = np.iinfo(dtype)
    place = np.clip(exact / y.scale.astype(np.float64) + y.zero_point, limits.min, limits.max)
    assert np.abs(got - place).max() <= 0.5 + 2.0**-6


@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_movement_keeps_integers(dtype):
    x = activation(dtype)
    image = x.random(2, 3, 4)
    case = Case()
    got = case.result("Transpose", [case.operand(image, x)], x, perm=[2, 0, 1])
    np.testing.assert_array_equal(got, image.transpose(2, 0, 1))
    assert prod(got.shape) == image.size


# float16: the option `precision`, and models of float16.

HALF = ("fake_npu", {"precision": "float16"})


def half(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def computed(text, feed, device=HALF):
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    with nna.InferenceSession(model, devices=[device], options=nna.Options(fallback="forbid")) as session:
        return session.run(None, feed)[0]


@pytest.mark.parametrize("op_type", ELEMENTWISE)
def test_results_are_rounded_to_float16(op_type):
    x, y = ((SEEDED.normal(size=(40, 50)) * 10.0 ** SEEDED.integers(-4, 3, 50)).astype(np.float32) for _ in range(2))
    feed, expected = {"x": x, "y": y}, half(ELEMENTWISE[op_type](half(x), half(y)))
    text = f"g (float[40, 50] x, float[40, 50] y) => (float[40, 50] z) {{ z = {op_type}(x, y) }}"
    np.testing.assert_array_equal(computed(text, feed), expected)
    halves = {name: array.astype(np.float16) for name, array in feed.items()}
    text = f"g (float16[40, 50] x, float16[40, 50] y) => (float16[40, 50] z) {{ z = {op_type}(x, y) }}"
    np.testing.assert_array_equal(computed(text, halves, "fake_npu"), expected.astype(np.float16))


def test_range_of_float16():
    x = np.array([2049, 2051, 65519, 65520, 1e-8, 6e-8, np.nan, -np.inf], np.float32)
    expected = [2048, 2052, 65504, np.inf, 0, 2.0**-24, np.nan, -np.inf]
    np.testing.assert_array_equal(computed("g (float[8] x) => (float[8] y) { y = Abs(x) }", {"x": x}), np.abs(expected))
    text = "g (float[2] x) => (float[2] y) <float c = {1e30}> { y = Mul(x, c) }"
    np.testing.assert_array_equal(computed(text, {"x": np.array([1, 2], np.float32)}), [65504, np.inf])


def test_sums_are_float32():
    """Whole numbers, so that no order of sums matters; in float16 the sum of ones would stop at 2048."""
    x, w = SEEDED.integers(-8, 9, (3, 300)).astype(np.float32), SEEDED.integers(-8, 9, (300, 4)).astype(np.float32)
    got = computed("g (float[3, 300] x, float[300, 4] w) => (float[3, 4] y) { y = MatMul(x, w) }", {"x": x, "w": w})
    np.testing.assert_array_equal(got, half(x @ w))
    ones = {"x": np.ones((1, 4099), np.float32), "w": np.ones((4099, 1), np.float32)}
    assert computed("g (float[1, 4099] x, float[4099, 1] w) => (float[1, 1] y) { y = MatMul(x, w) }", ones) == 4100
    image, filters = SEEDED.integers(-4, 5, (1, 6, 9, 9)).astype(np.float32), SEEDED.integers(-4, 5, (2, 6, 3, 3))
    text = "g (float[1, 6, 9, 9] x, float[2, 6, 3, 3] w) => (float[1, 2, 7, 7] y) { y = Conv(x, w) }"
    got = computed(text, {"x": image, "w": filters.astype(np.float32)})
    seen = windows(image.astype(np.int64), (3, 3), (1, 1), (0, 0, 0, 0))
    np.testing.assert_array_equal(got, half(np.einsum("nchwij,ocij->nohw", seen, filters)))


@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_quantized_products_do_not_depend_on_the_precision(dtype):
    x, w, y = activation(dtype), Format("int8", 0.02), activation(dtype, 0.1)
    rows, matrix = x.random(4, 90), w.random(90, 8)
    case = Case()
    names = [case.operand(rows, x), case.operand(matrix, w, is_constant=True)]
    got = case.result("MatMul", names, y, device=HALF)
    np.testing.assert_array_equal(got, requantized(x.centered(rows) @ w.centered(matrix), x, w, y, -1))
