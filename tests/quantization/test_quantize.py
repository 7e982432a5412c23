"""`nna.quantize`: QDQ models, their accuracy in ONNX Runtime, and data."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import nnadapter as nna
from nnadapter import errors
from nnadapter.cli import main
from nnadapter.quantization.equalization import equalized
from nnadapter.quantization.products import read_float_model
from nnadapter.quantization.qdq import Way, quantize_nodes
from nnadapter.quantization.quantize import calibrate
from tests.models import HEAD

CHANNELS = 8


def weights(*shape: int, seed: int = 0, spread: float = 0.0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    array = generator.normal(0, 1, shape) / np.sqrt(np.prod(shape[1:]))
    return (array * np.exp(generator.normal(0, spread, (shape[0], *[1] * (len(shape) - 1))))).astype(np.float32)


def network(spread: float = 0.0, opset: int = 17) -> onnx.ModelProto:
    """Two convolutions with batch normalization, one depthwise, a residual sum, a product and a Gemm."""
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> net (float[N, 3, 16, 16] x) => (float[N, 10] y) {{
        a = Conv<pads: ints = [1, 1, 1, 1]>(x, w1, b1)
        n = BatchNormalization(a, scale, shift, mean, variance)
        r = Relu(n)
        d = Conv<pads: ints = [1, 1, 1, 1], group: int = {CHANNELS}>(r, w2, b2)
        e = Clip(d, zero, six)
        s = Add(e, r)
        p = GlobalAveragePool(s)
        f = Flatten(p)
        h = MatMul(f, w3)
        t = Tanh(h)
        y = Gemm<transB: int = 1>(t, w4, b4)
    }}"""
    model = onnx.parser.parse_model(text)
    arrays = {
        "w1": weights(CHANNELS, 3, 3, 3, spread=spread),
        "b1": weights(CHANNELS, 1, seed=1)[:, 0],
        "scale": np.full(CHANNELS, 1.5, np.float32),
        "shift": np.full(CHANNELS, 0.1, np.float32),
        "mean": np.full(CHANNELS, 0.05, np.float32),
        "variance": np.full(CHANNELS, 0.8, np.float32),
        "w2": weights(CHANNELS, 1, 3, 3, seed=2),
        "b2": weights(CHANNELS, 1, seed=3)[:, 0],
        "zero": np.array(0, np.float32),
        "six": np.array(6, np.float32),
        "w3": weights(CHANNELS, 16, seed=4),
        "w4": weights(10, 16, seed=5),
        "b4": weights(10, 1, seed=6)[:, 0],
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def attention() -> onnx.ModelProto:
    """Product of two activations, of which one has channels a hundred times as large as others."""
    text = f"""{HEAD} net (float[N, 6, 32] x) => (float[N, 6, 32] y) {{
        l = Mul(x, outliers)
        q = MatMul(l, wq)
        k = MatMul(l, wk)
        t = Transpose<perm: ints = [0, 2, 1]>(k)
        m = MatMul(q, t)
        p = Softmax(m)
        y = MatMul(p, q)
    }}"""
    model = onnx.parser.parse_model(text)
    outliers = np.ones(32, np.float32)
    outliers[[3, 17]] = 100
    arrays = {"outliers": outliers, "wq": weights(32, 32, seed=1), "wk": weights(32, 32, seed=2)}
    for name in ("wq", "wk"):
        arrays[name] = arrays[name] / outliers[:, None] * 0.5
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def feeds(count: int = 12, shape: tuple[int, ...] = (1, 3, 16, 16)) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(7)
    return [{"x": generator.normal(0, 1, shape).astype(np.float32)} for _ in range(count)]


ROWS = feeds(shape=(1, 6, 32))


def outputs(model: onnx.ModelProto, data, *, optimized: bool = True) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, feed)[0] for feed in data])


def sqnr(model: onnx.ModelProto, quantized: onnx.ModelProto, data) -> float:
    """Return the ratio in dB, without ONNX Runtime's integer kernels, which saturate on some processors."""
    expected = outputs(model, data).astype(np.float64)
    noise = outputs(quantized, data, optimized=False) - expected
    return float(10 * np.log10((expected**2).sum() / (noise**2).sum()))


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"reduced": True}, 28),
        ({"reduced": True, "ranges": "minmax"}, 25),
        ({"reduced": True, "ranges": "percentile"}, 25),
        ({"reduced": True, "ranges": "entropy"}, 18),
        ({"precision": "w8a16"}, 35),
        ({"precision": "w8"}, 35),
        ({"precision": "w4a16"}, 18),
        ({"reduced": True, "per_channel": False}, 22),
        ({"symmetric": True, "reduced": True}, 22),
        ({"reduced": True, "equalize": True}, 25),
        ({"reduced": True, "every_operator": True}, 20),
        ({"every_operator": True, "precision": "w8a16"}, 30),
    ],
)
def test_quantized_model_is_valid_and_close_to_the_float_model(settings, least):
    model, data = network(), feeds()
    quantized = nna.quantize(model, data[:8], **settings)
    onnx.checker.check_model(quantized, full_check=True)
    assert sqnr(model, quantized, data) >= least


@pytest.mark.parametrize("optimized", [False, True])
def test_products_read_dequantized_integers(optimized):
    quantized = nna.quantize(network(), feeds(), reduced=True)  # processors without VNNI saturate 8-bit weights
    makers = {name: node for node in quantized.graph.node for name in node.output}
    products = [node for node in quantized.graph.node if node.op_type in ("Conv", "MatMul", "Gemm")]
    assert len(products) == 4
    assert all(makers[name].op_type == "DequantizeLinear" for node in products for name in node.input[:2])
    np.testing.assert_allclose(
        outputs(quantized, feeds(), optimized=optimized), outputs(quantized, feeds()), rtol=0.05, atol=0.05
    )


def test_batch_normalization_is_folded_into_the_convolution():
    assert "BatchNormalization" not in op_types(nna.quantize(network(), feeds()))


def test_weights_of_convolutions_have_a_scale_per_channel():
    quantized = nna.quantize(network(spread=2), feeds())
    sizes = {tensor.name: list(tensor.dims) for tensor in quantized.graph.initializer}
    assert any(sizes[name] == [CHANNELS] for name in sizes if name.endswith("_scale"))
    tensors = nna.quantize(network(spread=2), feeds(), per_channel=False).graph.initializer
    assert all(not tensor.dims for tensor in tensors if tensor.name.endswith("_scale"))


def two_convolutions(spread: float) -> onnx.ModelProto:
    text = f"""{HEAD} net (float[1, 3, 16, 16] x) => (float[1, 4, 12, 12] y) {{
        a = Conv(x, w1, b1)
        r = Relu(a)
        y = Conv(r, w2, b2)
    }}"""
    model = onnx.parser.parse_model(text)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8, 1), "w2": (4, 8, 3, 3), "b2": (4, 1)}
    arrays = {name: weights(*shape, spread=spread * (name == "w1")) for name, shape in shapes.items()}
    arrays |= {name: arrays[name][:, 0] for name in ("b1", "b2")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def test_scales_per_channel_are_more_accurate_for_channels_of_different_size():
    model, data = two_convolutions(spread=2), feeds()
    sizes = np.abs(onnx.numpy_helper.to_array(model.graph.initializer[0])).max(axis=(1, 2, 3))
    second = onnx.numpy_helper.to_array(model.graph.initializer[2]) / sizes[:, None, None]
    model.graph.initializer[2].CopyFrom(onnx.numpy_helper.from_array(second, "w2"))
    fine, coarse = (
        sqnr(model, nna.quantize(model, data, precision="w8", per_channel=per_channel), data)
        for per_channel in (True, False)
    )
    assert fine > coarse + 3


def test_equalization_helps_scales_per_tensor():
    model, data = two_convolutions(spread=2), feeds()
    plain, better = (
        sqnr(model, nna.quantize(model, data, per_channel=False, reduced=True, equalize=equalize), data)
        for equalize in (False, True)
    )
    assert better > plain + 1


def test_equalization_does_not_change_the_function():
    model, data = two_convolutions(spread=3), feeds(3)
    changed = equalized(read_float_model(model)).model
    before, after = (
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in each.graph.initializer}
        for each in (model, changed)
    )
    assert not np.allclose(before["w1"], after["w1"])
    np.testing.assert_allclose(outputs(changed, data), outputs(model, data), rtol=1e-4, atol=1e-2)


def test_smoothing_helps_activations_with_outliers():
    model = attention()
    plain, smooth = (sqnr(model, nna.quantize(model, ROWS, smooth=alpha), ROWS) for alpha in (0.0, 0.5))
    assert smooth > plain + 3


class Rows:
    """Stand-in for a Ray dataset."""

    def __init__(self, rows):
        self._rows, self.is_open = rows, False

    def __iter__(self):
        return iter(())

    def iter_rows(self):
        self.is_open = True
        try:
            yield from self._rows
        finally:
            self.is_open = False


def test_dataset_may_have_further_columns_and_is_closed_after_an_error():
    text = f"{HEAD} net (float[8, 64] x) => (float[8, 32] y) {{ y = MatMul(x, w) }}"
    model = filled(text, w=weights(64, 32))
    labeled = Rows([{**feed, "label": number} for number, feed in enumerate(PLAIN)])
    assert sqnr(model, nna.quantize(model, labeled), PLAIN) > 33
    wrong = Rows([*PLAIN, {"z": PLAIN[0]["x"]}, *PLAIN])
    with pytest.raises(nna.errors.CalibrationDataError, match="'z', which is no input") as caught:
        nna.quantize(model, wrong)
    assert not wrong.is_open, caught


def test_smoothing_uses_both_ends_of_channels():
    text = f"{HEAD} net (float[8, 64] x) => (float[8, 32] y) {{ y = MatMul(x, w) }}"
    model = filled(text, w=weights(64, 32))
    generator = np.random.default_rng(3)
    one_sided = generator.uniform(-0.05, 1, (8, 8, 64)) * np.where(np.arange(64) == 5, 100, 1)  # few are negative
    data = [{"x": array.astype(np.float32)} for array in one_sided]
    plain = sqnr(model, nna.quantize(model, data, ranges="minmax"), data)
    smooth = sqnr(model, nna.quantize(model, data, ranges="minmax", smooth=0.5), data)
    symmetric = sqnr(model, nna.quantize(model, data, ranges="minmax", smooth=0.5, symmetric=True), data)
    assert smooth > plain + 3
    assert smooth > symmetric + 3


def test_bias_correction_restores_the_mean_of_channels():
    model, data = network(), feeds(24)
    expected = outputs(model, data).mean(axis=0)
    shifts = []
    for corrected in (False, True):
        quantized = nna.quantize(model, data, correct_bias=corrected)
        shifts.append(np.abs(outputs(quantized, data).mean(axis=0) - expected).mean())
    assert shifts[1] < shifts[0]


def test_model_that_ends_in_an_activation_function_is_not_changed():
    text = f"""{HEAD} net (float[1, 3, 16, 16] x) => (float[1, 8, 14, 14] y) {{
        c = Conv(x, w)
        y = Relu(c)
    }}"""
    model = read_float_model(filled(text, w=weights(8, 3, 3, 3)))
    before = model.model.SerializeToString()
    ways = {product.node: Way() for product in model.products}
    values = calibrate(model, ways, feeds())
    first, second = (quantize_nodes(model, ways, values, {}) for _ in range(2))
    assert model.model.SerializeToString() == before
    assert first.SerializeToString() == second.SerializeToString()
    assert sqnr(model.model, first, feeds()) > 30


def test_excluded_nodes_stay_in_float():
    by_type = nna.quantize(network(), feeds(), exclude=["Conv"])
    makers = {name: node.op_type for node in by_type.graph.node for name in node.output}
    convolutions = [node for node in by_type.graph.node if node.op_type == "Conv"]
    assert all(makers.get(name) != "DequantizeLinear" for node in convolutions for name in node.input)
    with pytest.raises(errors.InvalidModelError, match="exclude less"):
        nna.quantize(network(), feeds(), exclude=["*"])


def test_old_opset_is_raised():
    quantized = nna.quantize(network(opset=11), feeds())
    assert quantized.opset_import[0].version >= 13
    assert sqnr(network(opset=11), quantized, feeds()) > 25


def test_model_is_written_and_read_by_onnxruntime(tmp_path):
    path, out = tmp_path / "net.onnx", tmp_path / "quantized.onnx"
    onnx.save(network(), path)
    quantized = nna.quantize(path, feeds(), out)
    np.testing.assert_array_equal(outputs(onnx.load(out), feeds()), outputs(quantized, feeds()))


@pytest.mark.parametrize("device", ["openvino", "fake_npu"])
def test_quantized_model_runs_on_devices(device):
    model, data = network(), feeds()
    quantized = nna.quantize(model, data, reduced=True)
    with nna.InferenceSession(quantized, devices=device) as session:
        got = np.concatenate([session.run(None, feed)[0] for feed in data])
    expected = outputs(model, data)
    assert 10 * np.log10((expected**2).sum() / ((got - expected) ** 2).sum()) > 22


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["minmax", "mse"]), st.booleans())
def test_values_are_rounded_to_the_nearest_step(seed, ranges, symmetric):
    """A product with the identity returns its operand rounded to at most half a step, within the range."""
    model = onnx.parser.parse_model(f"{HEAD} net (float[4, 6] x) => (float[4, 6] y) {{ y = MatMul(x, w) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(6, dtype=np.float32), "w"))
    array = np.random.default_rng(seed).normal(0, 3, (4, 6)).astype(np.float32)
    quantized = nna.quantize(model, [{"x": array}], ranges=ranges, symmetric=symmetric)
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    scale, zero_point = float(tensors["x_scale"]), int(tensors["x_zero_point"])
    got = outputs(quantized, [{"x": array}], optimized=False)
    inside = np.clip(array, (0 - zero_point) * scale, (255 - zero_point) * scale)
    assert np.abs(got - inside).max() <= scale / 2 * 1.001 + 1e-6


def filled(text: str, **arrays: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


PLAIN = [{"x": np.random.default_rng(at).normal(0, 1, (8, 64)).astype(np.float32)} for at in range(12)]


class TestMatrixProducts:
    @pytest.mark.parametrize("shape", [(32,), (1,), (1, 32), (8, 32)])
    @pytest.mark.parametrize("attributes", ["", "<beta: float = 2.0>", "<alpha: float = 0.5>"])
    def test_gemm_with_any_bias(self, shape, attributes):
        text = f"{HEAD} net (float[8, 64] x) => (float[8, 32] y) {{ y = Gemm{attributes}(x, w, b) }}"
        model = filled(text, w=weights(64, 32), b=weights(64, *shape)[0].reshape(shape))
        assert sqnr(model, nna.quantize(model, PLAIN), PLAIN) > 33

    def test_bias_correction_is_independent_of_the_processor(self):
        text = f"{HEAD} net (float[8, 64] x) => (float[8, 32] y) {{ y = Gemm(x, w, b) }}"
        model = filled(text, w=weights(64, 32) * 5, b=weights(32, 1)[:, 0])
        corrected, plain = (
            sqnr(model, nna.quantize(model, PLAIN, correct_bias=correct), PLAIN) for correct in (True, False)
        )
        assert corrected > plain - 1

    @pytest.mark.parametrize("ranges", ["minmax", "mse", "percentile"])
    def test_smoothing_with_any_ranges(self, ranges):
        text = f"{HEAD} net (float[8, 64] x) => (float[8, 32] y) {{ y = MatMul(x, w) }}"
        model = filled(text, w=weights(64, 32))
        assert sqnr(model, nna.quantize(model, PLAIN, smooth=0.5, ranges=ranges), PLAIN) > 33

    def test_smoothing_leaves_transposed_operands(self):
        text = f"{HEAD} net (float[8, 64] x) => (float[64, 32] y) {{ y = Gemm<transA: int = 1>(x, w) }}"
        model = filled(text, w=weights(8, 32))
        assert sqnr(model, nna.quantize(model, PLAIN, smooth=0.5), PLAIN) > 33

    @pytest.mark.parametrize("settings", [{}, {"precision": "w8"}, {"every_operator": True}])
    @pytest.mark.parametrize("least", [-np.inf, -3.4e38])
    def test_mask_with_infinities(self, settings, least):
        text = f"""{HEAD} net (float[8, 64] x) => (float[8, 32] y) {{
            s = MatMul(x, w)
            m = Add(s, mask)
            p = Softmax(m)
            y = MatMul(p, v)
        }}"""
        mask = np.triu(np.full((8, 8), least, np.float32), 1)
        model = filled(text, w=weights(64, 8), v=weights(8, 32), mask=mask)
        assert sqnr(model, nna.quantize(model, PLAIN, **settings), PLAIN) > 20

    def test_weights_that_are_inputs_in_an_old_format(self):
        text = """<ir_version: 3, opset_import: ["" : 9]>
        net (float[8, 64] x, float[64, 32] w) => (float[8, 32] y) { y = MatMul(x, w) }"""
        model = filled(text, w=weights(64, 32))
        quantized = nna.quantize(model, PLAIN)
        assert "QuantizeLinear" in op_types(quantized)
        assert sqnr(model, quantized, PLAIN) > 33

    def test_default_value_of_an_input_is_calibrated(self):
        text = f"{HEAD} net (float[8, 64] x, float[64, 32] w) => (float[8, 32] y) {{ y = MatMul(x, w) }}"
        model = filled(text, w=weights(64, 32))
        assert sqnr(model, nna.quantize(model, PLAIN), PLAIN) > 33

    def test_excluded_name_of_the_users_model(self):
        text = f"""{HEAD} net (float[8, 64] x) => (float[8, 32] y) {{
            [fc1] m = MatMul(x, w)
            y = Add(m, b)
        }}"""
        model = filled(text, w=weights(64, 32), b=weights(32, 1)[:, 0])
        assert "QuantizeLinear" in op_types(nna.quantize(model, PLAIN))
        with pytest.raises(errors.InvalidModelError, match="exclude less"):
            nna.quantize(model, PLAIN, exclude=["fc1"])
        with pytest.raises(errors.InvalidOptionError, match="'fc2', which is no node or op type"):
            nna.quantize(model, PLAIN, exclude=["fc2"])


def test_sizes_computed_in_floats_stay_exact():
    text = f"""{HEAD} net (float[1, 3, 26, 26] x) => (float[1, 4, H, W] y) {{
        c = Conv<pads: ints = [1, 1, 1, 1]>(x, w)
        s = Shape(c)
        f = Cast<to: int = 1>(s)
        h = Mul(f, half)
        n = Cast<to: int = 7>(h)
        k = Concat<axis: int = 0>(two, tail)
        d = Slice(n, starts, ends)
        z = Concat<axis: int = 0>(head, d)
        y = Resize(c, roi, roi, z)
    }}"""
    arrays = {
        "w": weights(4, 3, 3, 3), "half": np.array(0.5, np.float32), "starts": np.array([2]), "ends": np.array([4]),
        "head": np.array([1, 4]), "roi": np.zeros(0, np.float32), "two": np.array([1]), "tail": np.array([4]),
    }  # fmt: skip
    model = filled(text, **arrays)
    data = feeds(4, (1, 3, 26, 26))
    quantized = nna.quantize(model, data, every_operator=True)
    assert outputs(quantized, data).shape == (4, 4, 13, 13)


def test_scales_of_a_resize_stay_exact():
    text = f"""{HEAD} net (float[1, 3, 9, 9] x) => (float[1, 4, H, W] y) {{
        c = Conv<pads: ints = [1, 1, 1, 1]>(x, w)
        y = Resize(c, roi, scales)
    }}"""
    model = filled(
        text, w=weights(4, 3, 3, 3), roi=np.zeros(0, np.float32), scales=np.array([1, 1, 2.13, 1.57], np.float32)
    )
    data = feeds(4, (1, 3, 9, 9))
    assert sqnr(model, nna.quantize(model, data, every_operator=True), data) > 25


def test_command_writes_the_model(tmp_path):
    onnx.save(network(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=np.stack([feed["x"] for feed in feeds()]), label=np.arange(12))
    arguments = ["quantize", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "data.npz")]
    result = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "out.onnx"), "--float-results", "--reduced"])
    assert result.exit_code == 0, result.output
    assert "out.onnx" in result.output
    assert sqnr(network(), onnx.load(tmp_path / "out.onnx"), feeds()) > 25


class TestData:
    def test_folder_of_npz_files(self, tmp_path):
        for number, feed in enumerate(feeds()):
            np.savez(tmp_path / f"{number:02}.npz", **feed)
        assert outputs(nna.quantize(network(), tmp_path), feeds()).tolist() == self.expected()

    def test_folder_of_npy_files_for_one_input(self, tmp_path):
        for number, feed in enumerate(feeds()):
            np.save(tmp_path / f"{number:02}.npy", feed["x"])
        assert outputs(nna.quantize(network(), str(tmp_path)), feeds()).tolist() == self.expected()

    def test_npz_file_of_stacked_samples(self, tmp_path):
        np.savez(tmp_path / "all.npz", x=np.stack([feed["x"] for feed in feeds()]))
        assert outputs(nna.quantize(network(), tmp_path / "all.npz"), feeds()).tolist() == self.expected()

    def test_generator_of_arrays_for_one_input(self):
        assert outputs(nna.quantize(network(), (feed["x"] for feed in feeds())), feeds()).tolist() == self.expected()

    def test_folder_of_pictures(self, tmp_path):
        pillow = pytest.importorskip("PIL.Image")
        for number in range(3):
            pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), np.uint8)
            pillow.fromarray(pixels).save(tmp_path / f"{number}.png")
        assert "QuantizeLinear" in op_types(nna.quantize(network(), tmp_path))

    @staticmethod
    def expected():
        return outputs(nna.quantize(network(), feeds()), feeds()).tolist()

    def test_maximum_of_samples(self):
        assert outputs(nna.quantize(network(), feeds(), max_samples=3), feeds()).tolist() == (
            outputs(nna.quantize(network(), feeds()[:3]), feeds()).tolist()
        )

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ([], "the data has no sample"),
            ("missing", "'missing' does not exist"),
            ({"x": np.zeros((1, 3, 16, 16), np.float32)}, "one feed"),
            (7, "the data is int"),
            ([{"z": np.zeros((1, 3, 16, 16), np.float32)}], "sample 0 has 'z', which is no input"),
            ([{}], "sample 0 does not fit the model: Required inputs"),
            ([{"x": np.zeros((1, 3, 16, 16))}], "sample 0 does not fit the model"),
            ([{"x": np.zeros((1, 4, 16, 16), np.float32)}], "sample 0 does not fit the model"),
            ([{"x": np.full((1, 3, 16, 16), np.nan, np.float32)}], "input 'x' of sample 0 is not finite"),
        ],
    )
    def test_unsuitable_data_is_refused(self, data, text, tmp_path):
        out = tmp_path / "out.onnx"
        with pytest.raises(errors.CalibrationDataError, match=text):
            nna.quantize(network(), data, out)
        assert not out.exists()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"precision": "w8a9"}, "precision must be one of w8a8"),
        ({"precision": "float16"}, "precision must be one of"),
        ({"ranges": "max"}, "ranges must be one of minmax"),
        ({"smooth": 2}, "smooth must be a number from 0 to 1"),
        ({"max_samples": 0}, "max_samples must be an integer of at least 1"),
    ],
)
def test_invalid_options_are_refused(settings, text):
    with pytest.raises(errors.InvalidOptionError, match=text):
        nna.quantize(network(), feeds(), **settings)


def test_model_without_products_is_refused():
    model = onnx.parser.parse_model(f"{HEAD} net (float[2] x) => (float[2] y) {{ y = Relu(x) }}")
    with pytest.raises(errors.InvalidModelError, match="nothing can be quantized"):
        nna.quantize(model, [np.ones(2, np.float32)])


def test_quantized_model_is_refused():
    with pytest.raises(errors.InvalidModelError, match="quantized already"):
        nna.quantize(nna.quantize(network(), feeds()), feeds())


def test_unwritable_file_is_refused_before_the_work(tmp_path):
    with pytest.raises(errors.NNAdapterError, match="cannot be written|does not exist|no folder"):
        nna.quantize(network(), feeds(), tmp_path / "missing" / "out.onnx")
