"""Predictions of what-if, compared with reports of the real pipeline and with brute force."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnadapter as nna
from nnadapter.candidates import prepare
from nnadapter.onnx.preparation import default_shapes
from nnadapter.planning import Planner, open_setting
from nnadapter.report import situation_of, what_if
from tests.models import HEAD, SANDWICH, ocr_model, parse
from tests.running.test_branch_decisions import FLAG

SIMULATED = {"clock": "simulated"}
PAIR = f"""{HEAD} pair (float[64, 64] x) => (float[64, 64] y) {{
    a = Relu(x)
    b = Sin(a)
    c = Cos(b)
    y = Neg(c)
}}"""
"""Sin and Cos are adjacent, so moving only one saves no segment."""
KINDS = ("Erf", "Sigmoid", "Softmax", "Sin", "Neg")
DET_OFF, REC_OFF = ("Erf", "Resize", "HardSigmoid"), ("Erf", "Softmax", "HardSigmoid")


def without(*names):
    return ("fake_npu", {**SIMULATED, "switched_off": ",".join(names)})


def real(model, *switched_off, policy="priority", **more):
    return nna.partition_report(model, without(*switched_off), options={"policy": policy, "fallback": "allow"}, **more)


def chain(kinds, side=32):
    lines, last = [], "x"
    for at, kind in enumerate(kinds):
        lines.append(f"v{at} = {kind}({last})" if at % 3 else f"r{at} = Relu({last}) v{at} = {kind}(r{at})")
        last = f"v{at}"
    body = " ".join(lines)
    return parse(f"{HEAD} chain (float[{side}, {side}] x) => (float[{side}, {side}] {last}) {{ {body} }}")


def test_faster_cpu_is_reported():
    found = nna.what_if(parse(PAIR), without("Sin", "Cos"))
    alone = nna.partition_report(parse(PAIR), "cpu").cost.seconds
    assert found.all_cpu_seconds == pytest.approx(alone) and alone < found.current_totals.seconds
    for text in (str(found), found.to_markdown()):
        words = " ".join(text.split())
        assert "the CPU alone is faster: guessed" in words
        assert "even the entire road map does not change that" in words


def test_first_step_faster_than_the_cpu_is_named():
    found = nna.what_if(parse(PAIR), without("Sin", "Cos"))
    last = len(found.road_map)
    between = (found.current_totals.seconds + found.road_map[-1].resulting_totals.seconds) / 2
    assert f"from step {last} of the road map on, the devices are faster" in " ".join(
        str(replace(found, all_cpu_seconds=between)).split()
    )
    for other in (
        replace(found, all_cpu_seconds=2 * found.current_totals.seconds),
        replace(found, all_cpu_seconds=None),
    ):
        assert "CPU alone" not in str(other)


@pytest.mark.parametrize("policy", ["priority", "latency"])
@settings(max_examples=15, deadline=None)
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=12))
def test_predictions_equal_reports_with_the_feature(policy, kinds):
    """Nothing is fused in these chains, so predictions are exact."""
    model, off = chain(kinds), sorted(set(kinds))
    found = nna.what_if(model, without(*off), options={"policy": policy})
    now = real(model, *off, policy=policy)
    assert found.current_totals.segments == len(now.segments)
    assert found.current_totals.seconds == pytest.approx(now.cost.seconds)
    assert sorted(feature.label for feature in found.features) == off
    for feature in found.features:
        then = real(model, *(name for name in off if name != feature.op_type), policy=policy)
        assert feature.resulting_totals.seconds == pytest.approx(then.cost.seconds)
        assert feature.segments_saved == len(now.segments) - len(then.segments)
        assert feature.resulting_totals.flops == pytest.approx(then.coverage.flops)
        assert feature.resulting_totals.nodes == pytest.approx(then.coverage.nodes)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "off", "policy"),
    [
        pytest.param("det", DET_OFF, "priority", marks=pytest.mark.sweep),
        ("det", DET_OFF, "latency"),
        ("rec", REC_OFF, "priority"),
        pytest.param("rec", REC_OFF, "latency", marks=pytest.mark.sweep),
    ],
)
def test_ranking_equals_the_order_of_real_costs(policy, kind, off):
    model = ocr_model(kind)
    found = nna.what_if(model, without(*off), options={"policy": policy})
    costs = {name: real(model, *(set(off) - {name}), policy=policy).cost.seconds for name in off}
    assert [feature.op_type for feature in found.features] == sorted(off, key=costs.__getitem__)


def test_flop_shares_are_relative_to_known_flops():
    """Data-dependent shapes make the FLOPs of Relu unknown."""
    decided = f"""{HEAD} g (float[4] x, bool[4] c) => (float[N] y) {{
        a = Sin(x)  b = Compress(a, c)  s = Relu(b)  y = Exp(s)
    }}"""
    found = nna.what_if(parse(decided), without("Sin"))
    assert found.current_totals.unknown_flops_nodes == 3 and found.features[0].resulting_totals.unknown_flops_nodes == 3
    for text in (str(found), found.to_markdown()):
        assert "known FLOPs" in text and not re.search(r"(?<!known )FLOPs(?!, as| and segments)", text)


def test_features_are_ranked_and_described():
    found = nna.what_if(parse(SANDWICH), without("Sin", "Cos"), {"x": (2, 4)})
    gains = [feature.seconds_saved for feature in found.features]
    assert gains == sorted(gains, reverse=True) and found.ranked_by[0] == "seconds_saved"
    text = str(found)
    assert "supporting Sin: 2 segments fewer" in text and "of FLOPs, guessed" in text and "faster" in text
    assert "is switched off on this device" in text
    assert text.isprintable() is False and found.device == "fake_npu"


@settings(max_examples=15, deadline=None)
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=3, max_size=10))
def test_road_map_ends_if_no_pair_improves_it(kinds):
    model, off = chain(kinds), sorted(set(kinds))
    found = nna.what_if(model, without(*off))
    taken = {label for step in found.road_map for label in step.labels}
    seconds = [found.current_totals.seconds, *(step.resulting_totals.seconds for step in found.road_map)]
    assert seconds == sorted(seconds, reverse=True)
    left = [name for name in off if name not in taken]
    for more in [*combinations(left, 1), *combinations(left, 2)]:
        then = real(model, *(name for name in left if name not in more))
        assert then.cost.seconds >= seconds[-1] - 1e-12


def situation(model, *off):
    """Return the input of the ranking."""
    setting = open_setting(without(*off), nna.Options())
    prepared = prepare(parse(model))
    planner = Planner(prepared, setting)
    return situation_of("model", planner.settle(planner.judge(default_shapes(prepared))), setting.devices[0])


def test_road_map_step_may_combine_two_features():
    """Judged by segments only, moving Sin or Cos alone moves a node but no boundary."""
    found = what_if.rank([situation(PAIR, "Sin", "Cos")], lambda gain: (gain.segments, 0, 0))
    assert [worth.gain.segments for worth in found.features] == [0, 0]
    (step,) = found.road_map
    assert {feature.op_type for feature in step.features} == {"Sin", "Cos"} and step.outcome.segments == 1


def test_atom_lacking_two_features_needs_both():
    known = situation(SANDWICH, "Sin", "Cos")
    both = frozenset(known.features)
    assert len(both) == 2
    needs = tuple(both if each else each for each in known.missing.needs)
    known = replace(known, missing=replace(known.missing, needs=needs), _outcomes={})
    assert all(known.with_features([feature]) == known.with_features() for feature in both)
    found = what_if.rank([known], what_if.by_time)
    assert [step.features for step in found.road_map] == [both] and known.frequency == dict.fromkeys(both, 2)


def test_cast_features_name_both_data_types():
    model = parse(f"""{HEAD} two (float[4, 8] x, int64 n) => (float[4, 8] y, int16[4, 8] z) {{
        a = Relu(x)
        y = Sin(a)
        z = Cast<to = 5>(y)
    }}""")
    found = {feature.label: feature for feature in nna.what_if(model, without("Sin"), {"n": ()}).features}
    assert set(found) == {"Sin", "Cast of float32 -> int16"}
    assert found["Cast of float32 -> int16"].reason == "unsupported_dtype"


def test_refusing_converter_is_named():
    model = parse(f"""{HEAD} kinds (float[1,1,1,1,1,2] x, float[2] v) => (float[1,1,1,1,1,2] y, int64[2,N] i) {{
        y = Neg(x)
        i = NonZero(v)
    }}""")
    features = nna.what_if(model, ("fake_npu", SIMULATED)).features
    labels = {feature.label: feature for feature in features}
    assert all(feature.models == 1 and feature.nodes == 1 for feature in features)
    assert labels["NonZero with a shape known only at run time"].missing_in == "converter"


def test_rules_are_not_features():
    rules = nna.Rules(bans=(nna.Ban(device="fake_npu", op_type="Neg"),))
    found = nna.what_if(parse(SANDWICH), without("Sin"), {"x": (2, 4)}, {"rules": rules})
    assert [feature.label for feature in found.features] == ["Sin"]
    assert any("no feature moves 1 nodes" in note for note in found.notes)
    (then,) = [feature.resulting_totals for feature in found.features]
    expected = real(parse(SANDWICH), input_shapes={"x": (2, 4)})
    assert then.nodes < expected.coverage.nodes == 1


RESIDUAL = parse(f"""{HEAD} residual (float[1, 16, 16, 16] x) => (float[1, 16, 16, 16] y)
<float[16, 16, 3, 3] w = {{{", ".join(["1"] * 2304)}}}> {{
    s = Identity(x)
    {
    "".join(
        f'''
    c{at} = Conv<pads = [1, 1, 1, 1]>({"s" if not at else f"t{at - 1}"}, w)
    r{at} = Relu(c{at})
    t{at} = Tanh(r{at})'''
        for at in range(3)
    )
}
    n = Sum(t2, s)
    y = Identity(n)
}}""")
"""Conv has nearly all FLOPs; the nodes between need two ops together."""


def test_uncalibrated_driver_is_ranked_by_flops_without_times():
    found = nna.what_if(RESIDUAL, ("trial", {"only": "ASSIGN,SUM,RESHAPE"}))
    assert found.ranked_by == ("flops", "segments_saved")
    assert found.features[0].label == "Conv"
    first, second = found.road_map
    assert first.labels == ("Conv",) and first.resulting_totals.flops > 0.9
    assert second.labels == ("Relu", "Tanh") and second.resulting_totals.segments == 1
    data = found.to_dict()
    seconds = [
        data["current_totals"]["seconds"],
        data["all_cpu_seconds"],
        *(each["seconds_saved"] for each in data["features"]),
    ]
    assert set(seconds) == {None}
    for text in (str(found), found.to_markdown()):
        assert "costs of trial are not known" in " ".join(text.split()) and "`nnadapter calibrate trial`" in text
        assert not re.search(r"predicted|guessed|faster|slower|[0-9] (ms|µs|ns|s)\b", text)


def test_every_guessed_number_is_marked():
    found = nna.what_if(parse(SANDWICH), without("Sin", "Cos"), {"x": (2, 4)})
    assert found.sources["cpu"] == "modeled"
    calibrated = replace(found, sources=dict.fromkeys(found.sources, "calibrated"))
    for guessed, known in ((str(found), str(calibrated)), (found.to_markdown(), calibrated.to_markdown())):
        assert "guessed" in guessed and "predicted" not in guessed
        assert guessed.count("guessed") == known.count("predicted") and "guessed" not in known


def test_several_models_are_added_up(tmp_path):
    kinds = {"one": ("Sin", "Erf"), "two": ("Sin", "Softmax", "Sin")}
    (tmp_path / "deep").mkdir()
    for name, each in kinds.items():
        onnx.save(chain(each), tmp_path / ("deep" if name == "two" else ".") / f"{name}.onnx")
    device = without("Sin", "Erf", "Softmax")
    found = nna.what_if([tmp_path, tmp_path / "one.onnx"], device)
    assert [Path(model.name) for model in found.models] == [Path("deep/two.onnx"), Path("one.onnx")]
    apart = [nna.what_if(chain(each), device) for each in kinds.values()]
    assert found.current_totals.segments == sum(each.current_totals.segments for each in apart)
    assert found.current_totals.seconds == pytest.approx(sum(each.current_totals.seconds for each in apart))
    (sin,) = [feature for feature in found.features if feature.label == "Sin"]
    saved = [feature.seconds_saved for each in apart for feature in each.features if feature.label == "Sin"]
    assert sin.models == 2 and sin.nodes == 3 and sin.seconds_saved == pytest.approx(sum(saved))


def test_failing_model_does_not_stop_the_others(tmp_path):
    onnx.save(chain(("Sin",)), tmp_path / "good.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"bad")
    seen = []
    found = nna.what_if(tmp_path, without("Sin"), on_model=lambda name, error: seen.append((name, error is None)))
    assert seen == [("bad.onnx", False), ("good.onnx", True)]
    assert [failed.name for failed in found.failed] == ["bad.onnx"] and "bad.onnx: failed: " in str(found)
    with pytest.raises(nna.errors.InvalidModelError, match="none of the 2 models"):
        nna.what_if([tmp_path / "bad.onnx", tmp_path / "none.onnx"], without("Sin"))


@pytest.mark.parametrize(
    ("models", "devices", "options", "error", "text"),
    [
        ([], "fake_npu", {}, nna.errors.ModelFileError, "no model"),
        (".", "fake_npu", {}, nna.errors.ModelFileError, "has no"),
        ("none.onnx", "fake_npu", {}, nna.errors.ModelFileError, "does not exist"),
        ("none.onnx", "cpu", {}, nna.errors.InvalidOptionError, "other than the CPU"),
        ("none.onnx", "fake_npu", {"plan": "plan.json"}, nna.errors.InvalidOptionError, "without a plan"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, monkeypatch, models, devices, options, error, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        nna.what_if(models, devices, options=options)


def test_one_of_several_devices_may_be_selected():
    devices = [without("Sin", "Cos"), "null"]
    assert nna.what_if(parse(SANDWICH), devices, {"x": (2, 4)}, device="null").features == ()
    with pytest.raises(nna.errors.DeviceNotFoundError, match="'npu' is none of the accelerators"):
        nna.what_if(parse(SANDWICH), devices, {"x": (2, 4)}, device="npu")


def test_fused_nodes_are_priced_together():
    """A convolution and its activation run as one; the current prediction equals the report's."""
    weights = onnx.numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), "w")
    model = parse(f"""{HEAD} conv (float[1, 8, 16, 16] x, float[8, 8, 3, 3] w) => (float[1, 8, 16, 16] y) {{
        a = Conv<pads = [1, 1, 1, 1]>(x, w)
        b = Relu(a)
        c = Sin(b)
        d = Conv<pads = [1, 1, 1, 1]>(c, w)
        y = Relu(d)
    }}""")
    model.graph.initializer.append(weights)
    del model.graph.input[1]
    found = nna.what_if(model, without("Sin"))
    assert found.current_totals.seconds == pytest.approx(real(model, "Sin").cost.seconds)
    assert found.features[0].resulting_totals.seconds == pytest.approx(real(model, "Erf").cost.seconds)


ACTIVATED = f"""{HEAD} gates (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y)
<float root = {{1.4142135}}, float one = {{1}}, float half = {{0.5}},
 float[8, 8, 3, 3] w = {{{", ".join(["1"] * 576)}}}> {{
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    b = Sigmoid(a)
    c = Conv<pads = [1, 1, 1, 1]>(b, w)
    d = Relu(c)
    e = HardSigmoid<alpha = 0.16666667, beta = 0.5>(d)
    f = Mul(d, e)
    g = Div(f, root)
    h = Erf(g)
    i = Add(h, one)
    j = Mul(f, i)
    k = Mul(j, half)
    y = Sin(k)
}}"""


@pytest.mark.parametrize("policy", ["priority", "latency"])
@pytest.mark.parametrize("off", [("Relu", "HardSigmoid", "Erf"), ("HardSigmoid",), ("Erf", "Sin"), ("Relu", "Sin")])
def test_feature_that_completes_a_fusion_gets_its_saving(policy, off):
    model = parse(ACTIVATED)
    found = nna.what_if(model, without(*off), options={"policy": policy})
    whole = real(model, *off, policy=policy).cost.seconds
    assert found.current_totals.seconds == pytest.approx(whole)
    for feature in found.features:
        then = real(model, *(name for name in off if name != feature.op_type), policy=policy).cost.seconds
        assert feature.resulting_totals.seconds == pytest.approx(then, abs=0.01 * whole)


def test_json_equals_to_dict():
    found = nna.what_if(parse(SANDWICH), without("Sin", "Cos"), {"x": (2, 4)})
    data = json.loads(found.to_json())
    assert data == found.to_dict() and data["schema_version"] == 2
    assert data["features"][0]["resulting_totals"]["segments"] == found.features[0].resulting_totals.segments
    assert data["models"] == [
        {"name": "sandwich", "input_shapes": {"x": [2, 4]}, "current_totals": data["current_totals"]}
    ]


def test_device_without_refusals_lacks_nothing():
    found = nna.what_if(parse(SANDWICH), ("fake_npu", SIMULATED), {"x": (2, 4)})
    assert not found.features and "lacks nothing" in str(found) and "lacks nothing" in found.to_markdown()


def test_the_number_of_features_is_bounded(monkeypatch):
    monkeypatch.setattr(what_if, "MOST_FEATURES", 2)
    found = nna.what_if(chain(("Sin", "Erf", "Sin", "Erf", "Neg")), without("Sin", "Erf", "Neg"))
    assert {feature.label for feature in found.features} == {"Sin", "Erf"}
    assert found.untried_features == 1 and any("1 less frequent" in note for note in found.notes)


def test_nodes_inside_of_branches_count():
    assert [feature.label for feature in nna.what_if(parse(FLAG), without("Add", "Neg")).features] == ["Add"]
