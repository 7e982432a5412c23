"""Models that ONNX Runtime's optimizers break."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter import compare
from nnadapter.drivers.onnxruntime import disabled_optimizers, failures
from nnadapter.errors import DriverWarning

LAYER_NORM = """g (float[4,4] x) => (float[4,4] y)
  <float two = {{{exponent}}}, float eps = {{0.1}}, float[4] g0 = {{1, 2, 3, 4}},
  float[4] b0 = {{0, 1, 0, 1}}> {{
  m = ReduceMean <axes=[-1], keepdims={mean}> (x)  d = Sub({difference})  p = Pow({power})
  v = ReduceMean <axes=[-1], keepdims={variance}> (p)  a = Add({total})  s = Sqrt(a)  q = Div({quotient})
  z = Mul(q, g0)  y = Add(z, b0) }}"""
PLAIN = {
    "exponent": "2",
    "mean": 1,
    "variance": 1,
    "difference": "x, m",
    "power": "d, two",
    "total": "v, eps",
    "quotient": "d, s",
}
RMS_NORM = """g (float[4,4] x) => (float[4,4] y)
  <float two = {{{exponent}}}, float eps = {{0.1}}, float[4] g0 = {{1, 2, 3, 4}}> {{
  p = Pow(x, two)  v = ReduceMean <axes=[-1], keepdims={keepdims}> (p)  a = Add(v, eps)  s = Sqrt(a)
  q = Div(x, s)  y = Mul(q, g0) }}"""
RECIPROCAL = """g ({type}[4] x, {type}[4] w) => ({type}[{size}] y) <{type}{rank} one = {{1}}> {{
  k = Div(one, x)  y = Mul(k, w) }}"""
QUANTIZED_TWICE = """g (float[4] x) => (float[4] y)
  <float s = {{0.05}}, float t = {{{scale}}}, uint8 z = {{100}}, uint8 o = {{{zero}}}> {{
  a = QuantizeLinear(x, s, z)  b = DequantizeLinear(a, s, z)  c = Identity(b)
  d = QuantizeLinear(c, t, o)  y = DequantizeLinear(d, t, o) }}"""
WRONG = {
    "mean - x": LAYER_NORM.format(**PLAIN | {"difference": "m, x"}),
    "deviation / x": LAYER_NORM.format(**PLAIN | {"quotient": "s, d"}),
    "third power": LAYER_NORM.format(**PLAIN | {"exponent": "4"}),
    "power of two": LAYER_NORM.format(**PLAIN | {"power": "two, d"}),
    "mean without keepdims": LAYER_NORM.format(**PLAIN | {"mean": 0}),
    "variance without keepdims": LAYER_NORM.format(**PLAIN | {"variance": 0}),
    "RMS without keepdims": RMS_NORM.format(exponent="2", keepdims=0),
    "reciprocal of integers": RECIPROCAL.format(type="int32", size="4", rank=""),
    "reciprocal of more dimensions": RECIPROCAL.format(type="float", size="1,1,4", rank="[1,1,1]"),
    "float64 near 1": """g (double[4] x) => (double[4] y)
      <double k = {1.000000001}, double t = {0.000000001}> {
      n = Abs(x)  a = Mul(n, k)  b = Sub(a, n)  y = Div(b, t) }""",
    "Expand to nothing": """g (float[1,4] x) => (float[0,4] y) <int64[2] s = {0, 1}> {
      a = Abs(x)  b = Expand(a, s)  y = Neg(b) }""",
    "another scale": QUANTIZED_TWICE.format(scale=0.07, zero=100),
    "another axis": """g (float[2,2] x) => (float[2,2] y) <float[2] s = {0.5, 2}, uint8[2] z = {100, 100}> {
      a = QuantizeLinear<axis = 0>(x, s, z)  b = DequantizeLinear<axis = 0>(a, s, z)
      d = QuantizeLinear<axis = 1>(b, s, z)  y = DequantizeLinear<axis = 1>(d, s, z) }""",
    "another zero point": QUANTIZED_TWICE.format(scale=0.05, zero=0),
}
for kind, number in ("float8e4m3fn", 17), ("float8e5m2", 19), ("int4", 22):
    WRONG[f"Relu quantized to {kind}"] = f"""g (float[4] x) => (float[4] y) <float s = {{0.5}}, float zero = {{0}}> {{
      d = Neg(x)  r = Relu(d)  z = Cast <to={number}> (zero)  q = QuantizeLinear(r, s, z)
      y = DequantizeLinear(q, s, z) }}"""
WRONG["Relu quantized to uint4"] = """g (float[4] x) => (float[4] y) <float s = {0.5}, uint4 z = {8}> {
  d = Neg(x)  r = Relu(d)  q = QuantizeLinear(r, s, z)  y = DequantizeLinear(q, s, z) }"""
INLINED = {
    "a difference in a branch": """g (float[4,4] x) => (float[4,4] y)
      <bool c = {1}, float two = {2}, float eps = {0.1}, float[4] w = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}> {
      m = ReduceMean<axes=[-1]>(x)
      d = If(c) <then_branch = t () => (float[4,4] d1) { d1 = Sub(m, x) },
                 else_branch = e () => (float[4,4] d2) { d2 = Sub(m, x) }>
      p = Pow(d, two)  v = ReduceMean<axes=[-1]>(p)  a = Add(v, eps)  s = Sqrt(a)  q = Div(d, s)  k = Mul(q, w)
      y = Add(k, b) }""",
    "a mean in a branch": """g (float[4,4] x) => (float[4,4] y)
      <bool c = {0}, float two = {2}, float eps = {0.1}, float[4] w = {1, 2, 3, 4}> {
      p = Pow(x, two)
      v = If(c) <then_branch = t () => (float[4,1] d1) { d1 = ReduceMean<axes=[-1]>(p) },
                 else_branch = e () => (float[4] d2) { d2 = ReduceMean<axes=[-1], keepdims=0>(p) }>
      a = Add(v, eps)  s = Sqrt(a)  q = Div(x, s)  y = Mul(q, w) }""",
    "a difference in a function": """g (float[4,4] x) => (float[4,4] y)
      <float two = {2}, float eps = {0.1}, float[4] w = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}> {
      d = my.center(x)  p = Pow(d, two)  v = ReduceMean<axes=[-1]>(p)  a = Add(v, eps)  s = Sqrt(a)  q = Div(d, s)
      k = Mul(q, w)  y = Add(k, b) }
      <domain: "my", opset_import: ["": 17]> center (x) => (d) { m = ReduceMean<axes=[-1]>(x) d = Sub(m, x) }""",
    "an exponent that a function is given": """g (float[4,4] x) => (float[4,4] y)
      <float four = {4}, float eps = {0.1}, float[4] w = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}> {
      m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)  s = my.root(d, four, eps)  q = Div(d, s)  k = Mul(q, w)
      y = Add(k, b) }
      <domain: "my", opset_import: ["": 17]> root (d, e, eps) => (s) {
      p = Pow(d, e)  v = ReduceMean<axes=[-1]>(p)  a = Add(v, eps)  s = Sqrt(a) }""",
    "an epsilon that Unsqueeze makes": """g (float[4,4] x) => (float[1,4,4] y)
      <float two = {2}, float eps = {0.1}, int64[3] n = {0, 1, 2}, float[4] w = {1, 2, 3, 4},
       float[4] b = {0, 1, 0, 1}> {
      m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<axes=[-1]>(p)
      e = Unsqueeze(eps, n)  a = Add(v, e)  s = Sqrt(a)  q = Div(d, s)  k = Mul(q, w)  y = Add(k, b) }""",
    "an exponent that Add makes": """g (float[4,4] x) => (float[4,4] y)
      <float three = {3}, float one = {1}, float eps = {0.1}, float[4] w = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}> {
      m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)  e = Add(three, one)  p = Pow(d, e)  v = ReduceMean<axes=[-1]>(p)
      a = Add(v, eps)  s = Sqrt(a)  q = Div(d, s)  k = Mul(q, w)  y = Add(k, b) }""",
    "a reciprocal that ConstantOfShape makes": """g (float[4] x, float[4] w) => (float[1,4] y) <int64[2] n = {1, 1}> {
      one = ConstantOfShape<value = float[1] {1}>(n)  r = Div(one, x)  y = Mul(r, w) }""",
    "a reciprocal that Cast makes": """g (int32[4] x, int32[4] w) => (int32[4] y) <float o = {1}> {
      one = Cast<to=6>(o)  r = Div(one, x)  y = Mul(r, w) }""",
}
"""Forms that exist only after ONNX Runtime inlines a call or folds a constant."""
HALF = """g (float16[2,2,4] x) => (float16[2,a,b] y) <float16[4,4] c =
  {{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1}}> {{ {} }}"""
CRASHES = {
    "float16 batch": HALF.format("t = Transpose<perm=[1,0,2]>(x) y = MatMul(t, c)"),
    "float16 batch and a computed constant": HALF.format("t = Transpose<perm=[1,0,2]>(x) k = Neg(c) y = MatMul(t, k)"),
    "float16 batch and a Reshape to the same shape": HALF.format(
        "t = Transpose<perm=[1,0,2]>(x) n = Constant<value_ints=[2,2,4]>() r = Reshape(t, n) y = MatMul(r, c)"
    ),
    "float16 batch on the right": HALF.format("t = Transpose<perm=[1,2,0]>(x) i = Identity(t) y = MatMul(c, i)"),
}
RIGHT = {
    "layer norm": LAYER_NORM.format(**PLAIN),
    "epsilon first": LAYER_NORM.format(**PLAIN | {"total": "eps, v"}),
    "RMS norm with another power": RMS_NORM.format(exponent="4", keepdims=1),
    "RMS norm": RMS_NORM.format(exponent="2", keepdims=1),
    "reciprocal": RECIPROCAL.format(type="float", size="4", rank=""),
    "reciprocal of a computed value": """g (float[4] x, float[4] w) => (float[4] y) <float[1] one = {1}> {
      e = Exp(x)  k = Div(one, e)  y = Mul(k, w) }""",
    "epsilon of the rank of the input": LAYER_NORM.format(**PLAIN).replace(
        "float eps = {0.1}", "float[1,1] eps = {0.1}"
    ),
    "Relu quantized to uint8": """g (float[4] x) => (float[4] y) <float s = {0.5}, uint8 z = {128}> {
      d = Neg(x)  r = Relu(d)  q = QuantizeLinear(r, s, z)  y = DequantizeLinear(q, s, z) }""",
    "quantized twice alike": QUANTIZED_TWICE.format(scale=0.05, zero=100),
}
BREAKS = {
    "lost behind Identity": """g (float[2,3] x, float[1] d) => (float[2,3] y) <float one = {1}> {
      a = Abs(x)  mid = Identity(a)  k = Div(one, d)  w = Mul(mid, k)  y = Relu(w) }""",
    "scale of another length": """g (float[1,1] x) => (float[1,2] y) <float two = {2}, float eps = {0.1},
      float[2] g0 = {0.5, -3}> {
      p = Pow(x, two)  v = ReduceMean <axes=[-1], keepdims=1> (p)  a = Add(v, eps)  s = Sqrt(a)  q = Div(x, s)
      y = Mul(q, g0) }""",
}
CPU_NEXT_TO_FAKE_NPU = [
    ("fake_npu", {"switched_off": "Abs,Add,Cast,Div,Expand,Identity,Mul,Pow,ReduceMean,Sqrt,Sub"}),
    "cpu",
]


def parsed(text: str) -> onnx.ModelProto:
    opset = 21 if "QuantizeLinear" in text else 17
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "my": 1]> {text}')


def feed_for(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    feed, random = {}, np.random.default_rng(2)
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dimension.dim_value for dimension in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        numbers = random.integers(2, 9, shape) if dtype.kind == "i" else random.standard_normal(shape) + 2
        feed[value.name] = numbers.astype(dtype)
    return feed


def by_onnxruntime(model: onnx.ModelProto, feed: dict[str, np.ndarray], level: str) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feed)


def run(
    model: object, feed: dict[str, np.ndarray], devices: object = "cpu", options: object = None
) -> list[np.ndarray]:
    with nna.InferenceSession(model, options, devices=devices, options=nna.Options(fallback="allow")) as session:
        return session.run(None, feed)


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["cpu", CPU_NEXT_TO_FAKE_NPU], ids=["cpu", "next to fake_npu"])
@pytest.mark.parametrize("name", WRONG | INLINED)
def test_optimizer_with_wrong_results_is_disabled(name: str, devices: object) -> None:
    model = parsed((WRONG | INLINED)[name])
    feed = feed_for(model)
    (got,), (expected,) = run(model, feed, devices), by_onnxruntime(model, feed, "ORT_DISABLE_ALL")
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("devices", ["cpu", CPU_NEXT_TO_FAKE_NPU], ids=["cpu", "next to fake_npu"])
@pytest.mark.parametrize("name", CRASHES)
def test_crashing_optimizer_is_disabled(name: str, devices: object) -> None:
    model = parsed(CRASHES[name])
    feed = feed_for(model)
    (got,), (expected,) = run(model, feed, devices), by_onnxruntime(model, feed, "ORT_DISABLE_ALL")
    np.testing.assert_allclose(got, expected, rtol=1e-2)


@pytest.mark.slow
def test_each_listed_crash_happens_in_onnxruntime() -> None:
    code = "import sys, onnxruntime; onnxruntime.InferenceSession(sys.stdin.buffer.read())"
    for text in CRASHES.values():
        contents = parsed(text).SerializeToString()
        assert failures.wrong_fusions(contents) == ("MatmulTransposeFusion",)
        child = subprocess.run([sys.executable, "-c", code], input=contents, capture_output=True, check=False)
        assert child.returncode < 0


def test_each_listed_flaw_happens_in_onnxruntime() -> None:
    optimizers = set(failures.FLAWS["float16 batch"].optimizers)  # it crashes the process
    for text in (*WRONG.values(), *INLINED.values()):
        model = parsed(text)
        feed = feed_for(model)
        (wrong,), (right,) = (by_onnxruntime(model, feed, level) for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"))
        assert wrong.shape != right.shape or not np.allclose(wrong, right, 1e-4, 1e-5)
        optimizers.update(failures.wrong_fusions(model.SerializeToString()))
    assert optimizers == {name for flaw in failures.FLAWS.values() for name in flaw.optimizers}


@pytest.mark.parametrize("name", RIGHT)
def test_other_models_are_bitwise_equal_to_onnxruntime(name: str) -> None:
    model = parsed(RIGHT[name])
    feed = feed_for(model)
    assert failures.wrong_fusions(model.SerializeToString()) == ()
    np.testing.assert_array_equal(run(model, feed), by_onnxruntime(model, feed, "ORT_ENABLE_ALL"))


def test_wrong_fusions_are_found_in_branches_and_functions(tmp_path) -> None:
    inner = parsed(WRONG["mean - x"]).graph
    path = tmp_path / "model.onnx"
    onnx.save(parsed(WRONG["mean - x"]), path)
    branch = parsed("g (bool c, float[4,4] x) => (float[4,4] y) { y = Identity(x) }")
    del branch.graph.node[:]
    body = onnx.helper.make_graph(inner.node, "b", [], inner.output, inner.initializer)
    branch.graph.node.append(onnx.helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body))
    function = parsed("g (float[4,4] x) => (float[4,4] y) { y = Identity(x) }")
    constants = [
        onnx.helper.make_node("Constant", [], [initializer.name], value=initializer)
        for initializer in inner.initializer
    ]
    imports = [onnx.helper.make_opsetid("", 17)]
    function.functions.append(onnx.helper.make_function("own", "f", ["x"], ["y"], [*constants, *inner.node], imports))
    function.opset_import.append(onnx.helper.make_opsetid("own", 1))
    function.graph.node[0].CopyFrom(onnx.helper.make_node("f", ["x"], ["y"], domain="own"))
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    for model, feed in ((str(path), {"x": x}), (branch, {"x": x, "c": np.array(True)}), (function, {"x": x})):
        loaded = onnx.load(model) if isinstance(model, str) else model
        expected = by_onnxruntime(loaded, feed, "ORT_DISABLE_ALL")
        np.testing.assert_allclose(run(model, feed), expected, rtol=1e-4, atol=1e-5)


def test_the_optimizers_that_a_caller_disables_stay_disabled() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("optimization.disable_specified_optimizers", "NotWhereFusion;GeluFusionL1")
    assert disabled_optimizers(options, ["DivMulFusion"], ["PadFusion"]) == [
        "DivMulFusion",
        "PadFusion",
        "NotWhereFusion",
        "GeluFusionL1",
    ]


@pytest.mark.parametrize("devices", ["cpu", CPU_NEXT_TO_FAKE_NPU], ids=["cpu", "next to fake_npu"])
@pytest.mark.parametrize("name", BREAKS)
def test_failing_optimizers_lower_the_optimization_level(name: str, devices: object) -> None:
    model = parsed(BREAKS[name])
    feed = feed_for(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with nna.InferenceSession(model, devices=devices, options=nna.Options(fallback="allow")) as session:
            (got,) = session.run(None, feed)
            session.run(None, feed)
            report = str(session.report())
    (expected,) = by_onnxruntime(model, feed, "ORT_DISABLE_ALL")
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    texts = [str(warning.message) for warning in caught if warning.category is DriverWarning]
    assert len(texts) == 1
    assert "ORT_ENABLE_" in texts[0]
    assert "fewer optimizations" in report


def test_a_caller_that_disables_all_optimizations_sees_the_error() -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = parsed("g (float[2] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }")
    feed = {"x": np.zeros(2, np.float32), "i": np.array([7])}
    with warnings.catch_warnings(), pytest.raises(nna.errors.NNAdapterError, match="indices"):
        warnings.simplefilter("error")
        run(model, feed, options=options)
    with warnings.catch_warnings(), pytest.raises(nna.errors.NNAdapterError, match="indices"):
        warnings.simplefilter("error")
        run(model, feed)


def test_compare_names_the_cpu_when_only_the_cpu_differs(monkeypatch) -> None:
    flaw = failures.FLAWS["layer norm"]
    monkeypatch.setitem(failures.FLAWS, "layer norm", flaw._replace(occurs_in=lambda graph: False))
    report = compare(parsed(WRONG["mean - x"]), "fake_npu")
    (difference,) = report.differences
    assert difference.agrees
    assert difference.cpu_differs
    assert report.agrees
    assert "cpu DIFFERS" in str(report)


def test_values_with_two_readers_are_visited_once() -> None:
    squares = " ".join(f"v{at + 1} = Mul(v{at}, v{at})" for at in range(30))
    model = parsed(f"""g (float[4] x) => (float[4] y) <float[1] one = {{1}}> {{
      v0 = Tanh(x)  {squares}  d = Div(one, v30)  y = Mul(d, x) }}""")
    assert failures.wrong_fusions(model.SerializeToString()) == ()
