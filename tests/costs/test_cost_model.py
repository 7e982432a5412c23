from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from nnadapter.costs import CONVERSION_BANDWIDTH, UNKNOWN_DIMENSION, DeviceCosts, Source
from nnadapter.drivers import Profile
from nnadapter.planning import settle
from nnadapter.report.builder import weight_facts
from tests.candidates.test_atoms import GELU
from tests.costs.judging import priced
from tests.models import HEAD, parse

PROFILE = Profile(peak_flops=1e6, bandwidth=1e3, launch_seconds=3.0, transfer_seconds=0.25, transfer_bandwidth=1e3)
"""Slow enough that every byte and every operation matters."""
PLAIN = DeviceCosts(source=Source.MODELED, profile=PROFILE)
SIMULATED = ("fake_npu", {"clock": "simulated"})

BLOCK = f"""{HEAD} block (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] z)
<float[4, 3, 3, 3] w = {{{", ".join(["0.5"] * 108)}}}, float[4] b = {{1, 2, 3, 4}},
 float[4] scale = {{1, 1, 1, 2}}, float[4] mean = {{0, 0, 0, 1}}, float[4] variance = {{1, 1, 1, 4}}> {{
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    n = BatchNormalization (c, scale, b, mean, variance)
    y = Relu (n)
    z = Softmax <axis = 1> (y)
}}"""
IMAGE = 4 * 8 * 8
"""Elements of c, n, y and z."""


def rooted(flops, nbytes):
    return max(flops / 1e6, nbytes / 1e3)


def test_fused_atom_is_priced_by_its_boundary():
    result = priced(parse(BLOCK), "fake_npu", costs={"fake_npu": PLAIN, "cpu": PLAIN})
    assert [len(atom) for atom in result.fused_graph.graph.atoms] == [3, 1]
    # x, the filter, one bias, four vectors of statistics (one of them equal to the bias), and y
    nbytes = 4 * (3 * 8 * 8 + 108 + 4 + 3 * 4 + IMAGE)
    flops = sum(result.judgment.model.conversion.flops[node] for node in range(3))
    assert result.run("fake_npu", "Conv", "Relu") == pytest.approx(rooted(flops, nbytes))
    convolution = 4 * (3 * 8 * 8 + 108 + 4 + IMAGE)
    normalization = 4 * (IMAGE + 4 * 4 + IMAGE)
    apart = [rooted(result.judgment.model.conversion.flops[0], convolution), rooted(4 * IMAGE, normalization)]
    apart.append(rooted(IMAGE, 8 * IMAGE))
    assert result.run("cpu", "Conv", "Relu") == pytest.approx(sum(apart), rel=1e-3)
    assert result.run("cpu", "Softmax") == result.run("fake_npu", "Softmax")


def test_decomposed_gelu_is_priced_as_one_operation():
    result = priced(parse(GELU), "fake_npu", {"x": (5, 6)}, {"fake_npu": PLAIN, "cpu": PLAIN})
    constants, image = 3 * 4, 4 * 30
    assert result.run("fake_npu", "Erf") == pytest.approx(rooted(0, 2 * image + constants))
    reads_and_writes = [2 * image + 4, 2 * image, 2 * image + 4, 3 * image, 2 * image + 4]
    assert result.run("cpu", "Erf") == pytest.approx(
        sum(rooted(0, reads_and_write) for reads_and_write in reads_and_writes)
    )


@pytest.mark.parametrize("model", ["HARD_SWISH", "GELU", "SHARED", "QUANTIZED", "LAYER"])
@pytest.mark.parametrize(
    "device", [("fake_npu", {"switched_off": off}) for off in ("HardSigmoid,Erf,Mul", "MatMul,Sub")]
)
def test_host_cost_does_not_depend_on_other_devices(model, device):
    text = {"HARD_SWISH": HARD_SWISH, "GELU": GELU, "SHARED": SHARED, "QUANTIZED": QUANTIZED, "LAYER": LAYER}[model]
    given = {"x": (5, 6)} if model == "GELU" else {}
    costs = {"cpu": PLAIN}
    expected = priced(parse(text), "null", given, costs)
    row = expected.table.devices.index("cpu")
    for devices in (["fake_npu"], [device]):
        result = priced(parse(text), devices, given, costs)
        here = result.table.prices.run[result.table.devices.index("cpu")]
        assert here.sum() == pytest.approx(expected.table.prices.run[row].sum(), rel=1e-12)


QUANTIZED = """<ir_version: 10, opset_import: ["" : 20]> q (int8[1, 4] x) => (int8[1, 4] y)
<float s = {0.5}, int8 zero = {0}, int8[4, 4] qw = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> {
    a = DequantizeLinear (x, s, zero)
    b = DequantizeLinear (qw, s, zero)
    c = MatMul (a, b)
    y = QuantizeLinear (c, s, zero)
}"""


HARD_SWISH = f"""{HEAD} h (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{
    gate = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)
    y = Mul (x, gate)
}}"""
LAYER = f"""{HEAD} l (float[2, 8] x) => (float[2, 8] y)
<float[1] two = {{2}}, float[1] epsilon = {{0.00001}}, float[8] scale = {{1,2,3,4,5,6,7,8}}> {{
    mean = ReduceMean <axes = [-1]> (x)
    centered = Sub (x, mean)
    squared = Pow (centered, two)
    variance = ReduceMean <axes = [-1]> (squared)
    safe = Add (variance, epsilon)
    deviation = Sqrt (safe)
    normal = Div (centered, deviation)
    y = Mul (normal, scale)
}}"""
SHARED = """<ir_version: 10, opset_import: ["" : 20]> q (int8[1, 4] x) => (int8[1, 4] y, int8[1, 4] z)
<float s = {0.5}, int8 zero = {0}, int8[4, 4] qw = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> {
    a = DequantizeLinear (x, s, zero)
    b = DequantizeLinear (qw, s, zero)
    c = MatMul (a, b)
    y = QuantizeLinear (c, s, zero)
    d = MatMul (a, b)
    e = Relu (d)
    z = QuantizeLinear (e, s, zero)
}"""


def test_a_quantized_group_moves_bytes_not_floats():
    result = priced(parse(QUANTIZED), "fake_npu", costs={"fake_npu": PLAIN, "cpu": PLAIN})
    assert [len(atom) for atom in result.fused_graph.graph.atoms] == [4]
    scale_and_zero = 4 + 1
    assert result.run("fake_npu", "MatMul") == pytest.approx(rooted(0, 4 + 16 + 4 + scale_and_zero))


def test_views_and_no_operations_cost_nothing():
    model = parse(f"""{HEAD} v (float[2, 6] x) => (float[3, 4] y) <int64[2] to = {{3, 4}}> {{
        a = Relu(x)
        b = Reshape(a, to)
        y = Neg(b)
    }}""")
    slow = DeviceCosts(source=Source.MODELED, profile=Profile(**{**_fields(PROFILE), "operation_seconds": 5.0}))
    result = priced(model, "fake_npu", costs={"fake_npu": slow, "cpu": slow})
    assert result.run("fake_npu", "Reshape") == 0.0
    assert result.run("cpu", "Reshape") == 5.0


def _fields(profile):
    return {name: getattr(profile, name) for name in type(profile).__dataclass_fields__}


def test_gather_does_not_read_the_entire_table():
    model = parse(f"""{HEAD} g (int64[2] i) => (float[2, 4] y)
        <float[100, 4] table = {{{", ".join(["1"] * 400)}}}> {{ y = Gather(table, i) }}""")
    result = priced(model, "fake_npu", costs={"fake_npu": PLAIN})
    assert result.run("fake_npu", "Gather") == pytest.approx(rooted(0, 16 + 32 + 32))


def test_refused_atoms_cost_infinity_and_host_transfers_nothing():
    model = parse(BLOCK)
    result = priced(model, ("fake_npu", {"switched_off": "Softmax"}))
    assert result.run("fake_npu", "Softmax") == np.inf
    assert result.run("cpu", "Softmax") < np.inf
    row = result.table.devices.index("cpu")
    prices = result.table.prices
    assert not prices.transfer_in[row].any() and not prices.transfer_out[row].any() and prices.launch[row] == 0
    assert result.table.prices.values == ("x", "c", "n", "y", "z")


BORDER = f"""{HEAD} b (float[2, 6] x, int64[2, 6] i, bool[2, 6] k, float[1, 2, 3, 4] p, string[6] s)
=> (float[2, 6] y, int64[2, 6] j, bool[2, 6] l, float[1, 2, 3, 4] q, string[6] t, int64[2, n] d, float[2, 6] f) {{
    y = Neg(x)
    j = Identity(i)
    l = Not(k)
    q = Neg(p)
    t = Identity(s)
    d = NonZero(x)
    several = SequenceConstruct(x, x)
    f = SequenceAt(several, zero)
}}"""


@pytest.fixture(scope="module")
def border():
    text = BORDER.replace("{\n    y =", "{\n    zero = Constant <value_int = 0> ()\n    y =")
    profile = Profile(**{**_fields(PROFILE), "boundary_dtypes": frozenset({"float32", "bool"}), "channels_last": True})
    costs = DeviceCosts(source=Source.MODELED, profile=profile)
    return priced(parse(text), "fake_npu", costs={"fake_npu": costs})


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("x", 0.25 + 48 / 1e3),
        ("i", 0.25 + 96 / 1e3 + 2 * 96 / CONVERSION_BANDWIDTH),
        ("k", 0.25 + 12 / 1e3),
        ("p", 0.25 + 96 / 1e3 + 2 * 96 / 1e3),
        ("s", np.inf),
        ("several", np.inf),
        ("d", 0.25 + 2 * UNKNOWN_DIMENSION * 8 / 1e3 + 4 * UNKNOWN_DIMENSION * 8 / CONVERSION_BANDWIDTH),
    ],
)
def test_crossing_values_are_priced_or_forbidden(border, name, seconds):
    assert border.crossing("fake_npu", name) == pytest.approx(seconds)
    assert border.crossing("cpu", name) == 0.0


def test_assumptions_are_reported(border):
    assert any(f"priced as {UNKNOWN_DIMENSION:,}" in note for note in border.table.notes)
    assert any(re.match(r"FLOPs of \d+ nodes are unknown", note) for note in border.table.notes)


@pytest.mark.parametrize(
    ("dtype", "source"),
    [*product(["float", "float16", "double"], [Source.CALIBRATED]), ("float16", Source.MODELED)],
)
def test_note_on_other_types_than_float32(dtype, source):
    """fake_npu takes three times as long for float16 as for float32."""
    model = parse(
        f"{HEAD} g ({dtype}[4, 4] x, int64[4] i) => ({dtype}[4, 4] y, int64[4] j) {{ y = MatMul(x, x)  j = Add(i, i) }}"
    )
    profile = Profile(peak_flops=1.0, bandwidth=1.0, launch_seconds=0.0, transfer_seconds=0.0, transfer_bandwidth=1.0)
    result = priced(model, "fake_npu", costs={"fake_npu": DeviceCosts(source=source, profile=profile)})
    said = [note for note in result.table.notes if note.startswith("calibrations are of float32: ")]
    name = {"double": "float64"}.get(dtype, dtype)
    words = f"calibrations are of float32: operations in {name} are priced on 'fake_npu' as if they were, too"
    assert said == ([words] if dtype != "float" and source is Source.CALIBRATED else [])


def test_sources_are_reported():
    result = priced(parse(BLOCK), [SIMULATED, "null", "cpu"])
    assert result.table.sources == {"fake_npu": "simulated", "null": "assumed", "cpu": "modeled"}
    assert any("'null' are assumed" in note and "nnadapter calibrate null" in note for note in result.table.notes)


def test_shared_weights_count_once():
    ones = ", ".join(["1"] * 16)
    model = parse(f"""{HEAD} w (float[1, 4] x) => (float[1, 4] y)
    <float[4, 4] w = {{{ones}}}, float[4] b = {{1, 2, 3, 4}}> {{
        a = MatMul(x, w)
        c = Sin(a)
        d = Add(c, b)
        y = MatMul(d, w)
    }}""")
    result = priced(model, ("fake_npu", {"switched_off": "Sin"}))
    weights = weight_facts(settle(result.judgment, result.setting).plan)
    assert weights.devices == {"fake_npu": 80, "cpu": 0}
    assert weights.total == 80


def test_simulated_clock_is_close_to_the_prediction():
    result = priced(parse(BLOCK), SIMULATED)
    analysis = settle(result.judgment, result.setting)
    (step,), (piece,) = analysis.plan.steps, analysis.pieces
    table, row = result.table, result.table.devices.index("fake_npu")
    border = sum(result.crossing("fake_npu", name) for name in (*step.inputs, *step.outputs))
    predicted = table.prices.run[row].sum() + table.prices.launch[row] + border
    assert 1e6 * predicted == pytest.approx(piece.admission.facts["simulated_us"], rel=0.1)
