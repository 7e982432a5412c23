"""Distances per layer, alone and accumulated: of devices from the CPU, and of quantized models from float models."""

from __future__ import annotations

import json
from math import inf
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import nnadapter as nna
from nnadapter.accuracy import localization
from nnadapter.cli import main
from nnadapter.errors import InvalidInputError, InvalidOptionError
from tests.models import HEAD, exact_options, numbers, parse

FACTOR = 4e-4
"""Relative error of nodes that the driver `planted` computes slightly wrongly."""
CHAIN = f"""{HEAD} g (float[N, 8] x) => (float[N, 8] y) {{
    [first] a = Neg(x)
    [second] b = Neg(a)
    [third] c = Neg(b)
    [fourth] y = Neg(c)
}}"""
FEED = {"x": numbers(4, 8)}


def measured(text=CHAIN, feed=FEED, options=None, **planted):
    report = nna.compare(parse(text), ("planted", planted), feed, layers=True, options=options)
    return {layer.nodes[0]: layer for layer in report.layer_distances}


def test_alone_and_accumulated():
    layers = measured(slightly=["first", "second", "third"])
    assert [*layers] == ["first", "second", "third", "fourth"]
    for count, layer in enumerate(layers.values(), 1):
        assert layer.devices == ("planted",) and layer.op_types == ("Neg",) and layer.position == count - 1
        off = (1 + FACTOR) ** min(count, 3) - 1
        assert layer.accumulated.sqnr_db == pytest.approx(-20 * np.log10(off), rel=1e-3)
        alone = FACTOR if count < 4 else 0
        assert layer.alone.relative == pytest.approx(alone, rel=1e-3)
    assert layers["fourth"].alone.sqnr_db == inf


def test_worst_layer_is_first():
    layers = measured(wrong=["third"], slightly=["first"])
    assert [*layers] == ["third", "first", "second", "fourth"]
    x = -FEED["x"]
    off = np.linalg.norm(x * -2.5 + 1) / np.linalg.norm(x)
    assert layers["third"].alone.relative == pytest.approx(off, rel=1e-5)
    assert layers["second"].alone.euclidean == 0 < layers["second"].accumulated.euclidean


@pytest.mark.parametrize("size", [1, 200])
def test_large_models_are_measured_in_pieces(monkeypatch, size):
    whole = measured(slightly=["first", "third"])
    monkeypatch.setattr(localization, "_PIECE_BYTES", size)
    assert measured(slightly=["first", "third"]) == whole


@pytest.mark.parametrize("size", [1, 1 << 28])
def test_nodes_on_the_cpu_pass_errors_on(monkeypatch, size):
    monkeypatch.setattr(localization, "_PIECE_BYTES", size)
    rules = nna.Rules(bans=(nna.Ban(device="planted", name="second"), nna.Ban(device="planted", name="fourth")))
    layers = measured(options=nna.Options(rules=rules), slightly=["first", "third"])
    assert {*layers} == {"first", "third"}
    assert layers["third"].accumulated.relative == pytest.approx((1 + FACTOR) ** 2 - 1, rel=1e-3)
    assert layers["third"].alone.relative == pytest.approx(FACTOR, rel=1e-3)


def test_node_that_cannot_run_alone():
    text = f"""{HEAD} g (float[4, 8] x) => (float[4, 4] y) {{
        [split] a, b = Split<axis = 1>(x)
        [sum] y = Add(a, b)
    }}"""
    devices = [("trial", {"only": ["SPLIT", "ADD"], "fault": "split"}), "fake_npu"]
    report = nna.compare(parse(text), devices, {"x": np.ones((4, 8), np.float32)}, layers=True)
    split = next(layer for layer in report.layer_distances if layer.nodes == ("split",))
    assert split.alone is None and split.accumulated is not None
    assert "         -         -         -         -  |" in str(report)


def test_zero_points_and_scales_do_not_matter():
    text = f"""{HEAD} g (float[2, 8] x) => (float[2, 8] y) <float s = {{0.5}}, uint8 z = {{200}}> {{
        [quantize] a = QuantizeLinear(x, s, z)
        [back] b = DequantizeLinear(a, s, z)
        [inner] c = Neg(b)
        [again] d = QuantizeLinear(c, s, z)
        [out] y = DequantizeLinear(d, s, z)
    }}"""
    x = np.arange(-8, 8, dtype=np.float32).reshape(2, 8)
    layers = measured(text, {"x": x}, wrong=["inner"])
    layer = next(layer for layer in layers.values() if "inner" in layer.nodes)
    got, expected = (np.clip(np.rint(number * 2) + 200, 0, 255) / 2 - 100 for number in (x * x, -x))
    assert layer.alone.euclidean == pytest.approx(np.linalg.norm(got - expected))
    assert layer.alone.relative == pytest.approx(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def test_shapes_that_depend_on_data():
    text = f"""{HEAD} g (float[4] x) => (int64[1, K] y) {{
        [first] a = Neg(x)
        [second] b = Relu(a)
        [third] y = NonZero(b)
    }}"""
    layers = measured(text, {"x": np.array([-1, 2, -3, 4], np.float32)}, wrong=["first"])
    assert layers["first"].alone.sqnr_db < inf
    assert all(layer.accumulated.sqnr_db == -inf for name, layer in layers.items() if name == "third")


def test_no_layers_on_the_cpu():
    report = nna.compare(parse(CHAIN), "cpu", FEED, layers=True)
    assert report.layer_distances == () and report.to_dict()["layer_distances"] == []
    assert nna.compare(parse(CHAIN), "cpu", FEED).layer_distances is None
    ElementTree.fromstring(report.to_svg())


# Quantized models.

FLOAT = """<ir_version: 10, opset_import: ["" : 21]> g (float[1, 3, 8, 8] x) => (float[1, 5] y) {
    [conv] c = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
    [relu] r = Relu(c)
    [conv2] d = Conv<pads = [1, 1, 1, 1]>(r, w2)
    [sum] s = Add(d, r)
    [sigmoid] e = Sigmoid(s)
    [pool] p = GlobalAveragePool(e)
    [flat] f = Flatten(p)
    [gemm] y = Gemm(f, w3, b3)
}"""
WEIGHTS = {"w1": (4, 3, 3, 3), "b1": (4,), "w2": (4, 4, 3, 3), "w3": (4, 5), "b3": (5,)}


def float_model():
    model = onnx.parser.parse_model(FLOAT)
    random = np.random.default_rng(3)
    for name, shape in WEIGHTS.items():
        model.graph.initializer.append(numpy_helper.from_array(random.normal(size=shape).astype(np.float32) / 2, name))
    return model


class Samples(CalibrationDataReader):
    def __init__(self):
        random = np.random.default_rng(4)
        self.feeds = iter([{"x": random.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(4)])

    def get_next(self):
        return next(self.feeds, None)


def quantized(path, **options):
    quantize_static(float_model(), path, Samples(), quant_format=QuantFormat.QDQ, **options)
    return onnx.load(path)


WAYS = {
    "uint8": {},
    "int8 per channel": {"per_channel": True, "activation_type": QuantType.QInt8},
    "uint16": {"activation_type": QuantType.QUInt16},
    "dedicated pairs": {"extra_options": {"DedicatedQDQPair": True}},
    "some operations": {"op_types_to_quantize": ["Conv"]},
}
PICTURE = {"x": np.random.default_rng(5).normal(size=(1, 3, 8, 8)).astype(np.float32)}


def values_of(model, names, feed):
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name != "y")
    session = onnxruntime.InferenceSession(model.SerializeToString(), exact_options())
    return dict(zip(names, session.run(names, feed), strict=True))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
def test_quantized_model_against_its_float_model(tmp_path, way, device):
    model = quantized(tmp_path / "q.onnx", **WAYS[way])
    report = nna.compare(model, device, PICTURE, reference=float_model(), layers=True)
    layers = {layer.values[0]: layer for layer in report.layer_distances}
    results = {name for node in model.graph.node for name in node.output}
    expected_names = [name for name in "xcrdsepfy" if {name, f"{name}_DequantizeLinear_Output"} & results]
    assert [layer.values[0] for layer in sorted(layers.values(), key=lambda layer: layer.position)] == expected_names
    expected = PICTURE | values_of(float_model(), [name for name in expected_names if name != "x"], PICTURE)
    ends = {
        name: next(end for end in (f"{name}_DequantizeLinear_Output", f"{name}_DequantizeLinear_Output_1", name)
                   if end in results)
        for name in expected_names
    }  # fmt: skip
    got = values_of(model, [*ends.values()], PICTURE)
    for name, end in ends.items():
        noise = np.linalg.norm((got[end] - expected[name]).astype(float))
        assert layers[name].accumulated.euclidean == pytest.approx(noise, rel=0.25, abs=1e-5)
        assert layers[name].alone.sqnr_db > 15
    assert report.layers is None and f"{device}" in str(report) and "against the reference model on cpu" in str(report)


def rounded(x, scale):
    return np.clip(np.rint(x / scale), -128, 127) * scale


def test_layer_alone_quantizes_inputs_of_the_float_model():
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    plain = parse(f"{head} g (float[64] x) => (float[64] y) {{ a = Sin(x) b = Exp(a) y = Neg(b) }}")
    model = parse(f"""{head} g (float[64] x) => (float[64] y) <float s = {{0.0625}}, int8 z = {{0}}> {{
        q = QuantizeLinear(x, s, z) x_DequantizeLinear_Output = DequantizeLinear(q, s, z)
        [sine] a = Sin(x_DequantizeLinear_Output)
        r = QuantizeLinear(a, s, z) t = DequantizeLinear(r, s, z)
        [power] b = Exp(t)
        [minus] y_QuantizeLinear_Input = Neg(b)
        u = QuantizeLinear(y_QuantizeLinear_Input, s, z) y = DequantizeLinear(u, s, z)
    }}""")
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    report = nna.compare(model, feeds={"x": x}, reference=plain, layers=True)
    layers = {layer.values[0]: layer for layer in report.layer_distances}
    assert [layers[name].nodes[0] for name in "aby"] == ["sine", "power", "minus"]
    a, b = np.sin(x), np.exp(np.sin(x))
    q = rounded(x, 0.0625)
    alone = {
        "x": (q, x),
        "a": (rounded(np.sin(q), 0.0625), a),
        "b": (np.exp(rounded(a, 0.0625)), b),
        "y": (rounded(-b, 0.0625), -b),
    }
    inside = np.exp(rounded(np.sin(q), 0.0625))
    accumulated = alone | {"b": (inside, b), "y": (rounded(-inside, 0.0625), -b)}
    for name, layer in layers.items():
        for off, (got, expected) in ((layer.alone, alone[name]), (layer.accumulated, accumulated[name])):
            assert off.relative == pytest.approx(np.linalg.norm(got - expected) / np.linalg.norm(expected), rel=1e-4)


def test_integers_without_dequantization_are_left_out(tmp_path):
    quantize_static(float_model(), tmp_path / "q.onnx", Samples(), quant_format=QuantFormat.QOperator)
    report = nna.compare(tmp_path / "q.onnx", feeds=PICTURE, reference=float_model(), layers=True)
    assert [layer.values for layer in report.layer_distances] == [("y",)]
    assert report.layer_distances[0].alone == report.layer_distances[0].accumulated


def test_equal_models_are_exact():
    report = nna.compare(float_model(), feeds=PICTURE, reference=float_model(), layers=True)
    assert report.agrees and len(report.layer_distances) == 8
    assert {layer.accumulated.sqnr_db for layer in report.layer_distances} == {inf}


def test_branches_read_the_float_model():
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, bool k) => (float[2] y) {
        a = Neg(x)
        y = If<then_branch = t () => (float[2] p) { p = Exp(a) }, else_branch = e () => (float[2] q) { q = Abs(a) }>(k)
    }"""
    feed = {"x": np.array([1, 2], np.float32), "k": np.array(True)}
    report = nna.compare(parse(text.replace("Neg", "Sin")), feeds=feed, reference=parse(text), layers=True)
    layers = {layer.values[0]: layer for layer in report.layer_distances}
    assert layers["y"].alone.sqnr_db > 100 > layers["y"].accumulated.sqnr_db


def test_references_that_do_not_fit(tmp_path):
    model = float_model()
    with pytest.raises(InvalidOptionError, match="layers without a reference"):
        nna.compare(model, feeds=PICTURE, reference=model, layers=True, save=tmp_path)
    renamed = float_model()
    renamed.graph.node[-1].output[0] = renamed.graph.output[0].name = "z"
    with pytest.raises(InvalidInputError, match="outputs are \\['z'\\]"):
        nna.compare(model, feeds=PICTURE, reference=renamed)


# Texts and pictures.


def named(count):
    nodes = "\n".join(f'["<b>&{number}"] v{number + 1} = Neg(v{number})' for number in range(count))
    return f"{HEAD} g (float[2] v0) => (float[2] v{count}) {{ {nodes} }}"


def long_report():
    model = parse(named(23).replace('["<b>&', "[n").replace('"]', "]"))
    for number, node in enumerate(model.graph.node):
        node.name = f'<b>&"{number}'
    return nna.compare(model, ("planted", {"slightly": ['<b>&"7']}), {"v0": np.ones(2, np.float32)}, layers=True)


def test_text_has_the_worst_layers():
    lines = str(long_report()).splitlines()
    assert lines[-21].split()[0] == "7" and lines[-21].endswith('<b>&"7 (Neg) on planted')
    assert lines[-1].strip() == "and 3 more"
    assert lines[-22].split() == [
        "#", *(["SQNR", "dB", "cosine", "Euclidean", "relative", "|"] * 2)[:-1], "layer",
    ]  # fmt: skip


def test_pictures_are_self_contained():
    report = long_report()
    svg = ElementTree.fromstring(report.to_svg("a & b"))
    texts = [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert len(texts) == 23 and texts[7].startswith('#7 <b>&"7 (Neg) on planted\nalone: SQNR dB 68.0, cosine 1.000000')
    assert svg.get("aria-label") == "SQNR per layer of a & b"
    page = report.to_html("<model>")
    assert "<b>&" not in page and "&lt;model&gt;" in page and "<script" not in page and "http" not in page.replace(
        'http-equiv="Content-Security-Policy"', ""
    ).replace('xmlns="http://www.w3.org/2000/svg"', "")  # fmt: skip
    assert page.count("<tr>") == 24


def call(words, code):
    result = CliRunner().invoke(main, words.split(), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(float_model(), "net.onnx")
    quantized(tmp_path / "net.int8.onnx")
    words = "compare net.int8.onnx --reference net.onnx --layers"
    out = call(f"{words} --picture net.svg", 1).stdout
    assert "cpu against the reference model on cpu" in out and "conv2 (Conv) on cpu" in out
    ElementTree.parse(tmp_path / "net.svg")
    data = json.loads(call(f"{words} --json --order graph --picture net.html", 1).stdout)
    assert [layer["position"] for layer in data["layer_distances"]] == [*range(8)]
    assert {"cosine", "sqnr_db", "euclidean", "relative"} == {*data["layer_distances"][0]["alone"]}
    assert (tmp_path / "net.html").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "net.int8-layers").exists()
    assert "ends neither in .svg nor in .html" in call(f"{words} --picture net.png", 2).stderr
    assert "--picture requires --layers" in call("compare net.onnx -d cpu --picture a.svg", 2).stderr
