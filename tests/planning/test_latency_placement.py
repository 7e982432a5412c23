from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import nnadapter as nna
from nnadapter.costs import DeviceCosts, Stopwatch, calibrate, keep_calibration
from nnadapter.errors import FallbackWarning, InvalidOptionError, PlanFileError, RulesError
from nnadapter.planning import PLACERS, read_plan
from nnadapter.policies import POLICIES
from tests.models import numbers, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 20]>'
SMALL = f"{HEAD} g (float[2, 4] x) => (float[2, 4] y) {{ a = Relu (x) b = Sin (a) y = Neg (b) }}"
FAST = Stopwatch(sleep=lambda _: None, turn_seconds=0.0)
LARGE = f"""{HEAD} g (float[1, 64, 64, 64] x) => (float[1, 64, 64, 64] y) {{
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Sin (a)
    y = Conv <pads = [1, 1, 1, 1]> (b, w)
}}"""
SIMULATED = ("fake_npu", {"clock": "simulated"})


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "cache"))


def model_of(text):
    model = onnx.parser.parse_model(text)
    if text is LARGE:
        weights = np.random.default_rng(1).random((64, 64, 3, 3), np.float32) - 0.5
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def devices_of(report):
    return {node.op_type: node.device for node in report.nodes}


def test_latency_needs_calibrated_costs():
    with pytest.raises(InvalidOptionError, match=r"fake_npu.*assumed.*nnadapter calibrate fake_npu"):
        nna.partition_report(model_of(SMALL), "fake_npu", options={"policy": "latency"})
    with pytest.raises(InvalidOptionError, match="nnadapter calibrate"):
        nna.InferenceSession(model_of(SMALL), devices="fake_npu", options=nna.Options(policy="latency"))


@pytest.mark.sweep
def test_latency_error_explains_devices_without_calibrated_costs():
    folder = Path(os.environ["NNADAPTER_CACHE_DIR"])
    keep_calibration(calibrate("null", budget_seconds=0.0, stopwatch=FAST))
    (file,) = (folder / "calibrations").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"driver_version": "0.9"}))
    with pytest.raises(InvalidOptionError) as caught:
        nna.partition_report(model_of(SMALL), ["fake_npu", "null"], options={"policy": "latency"})
    said = str(caught.value)
    assert "`nnadapter calibrate fake_npu` and `nnadapter calibrate null`" in said and "0.9 of its driver" in said
    report = nna.partition_report(model_of(SMALL), "null")
    assert "0.9 of its driver" in (report.cost_note or report.cost.note)


@pytest.mark.sweep
def test_latency_does_not_weigh_a_measured_device_against_a_guess(of_the_cpu):
    keep_calibration(calibrate("null", budget_seconds=0.0, stopwatch=FAST))
    with pytest.raises(InvalidOptionError, match=r"'cpu' \(modeled\); run `nnadapter calibrate cpu`"):
        nna.partition_report(model_of(SMALL), "null", options={"policy": "latency"})
    keep_calibration(of_the_cpu)
    report = nna.partition_report(model_of(SMALL), "null", options={"policy": "latency"})
    assert set(report.cost.sources.values()) == {"calibrated"}


def test_latency_leaves_small_work_on_the_cpu():
    report = nna.partition_report(model_of(SMALL), SIMULATED, options={"policy": "latency"})
    assert set(devices_of(report).values()) == {"cpu"}
    assert "the CPU alone is better" in str(report) and "the CPU alone is better" in report.to_markdown()
    assert report.cost.seconds == report.cost.all_cpu_seconds
    assert report.cost.sources == {"fake_npu": "simulated", "cpu": "modeled"}


def test_latency_delegates_large_work():
    report = nna.partition_report(model_of(LARGE), SIMULATED, options={"policy": "latency"})
    assert set(devices_of(report).values()) == {"fake_npu"}
    assert report.cost.seconds < report.cost.all_cpu_seconds
    assert 0 <= report.cost.gap < 0.5 and report.cost.bound_seconds <= report.cost.seconds
    assert {candidate.name for candidate in report.cost.candidates} >= {"all on cpu", "everything supported"}


def test_segment_prices_add_up():
    off = ("fake_npu", {"clock": "simulated", "switched_off": "Sin"})
    report = nna.partition_report(model_of(LARGE), off)
    assert [segment.device for segment in report.segments] == ["fake_npu", "cpu", "fake_npu"]
    assert sum(segment.predicted_seconds for segment in report.segments) == pytest.approx(report.cost.seconds)
    for segment in report.segments:
        nodes = sum(node.predicted_seconds for node in report.nodes if node.segment == segment.index)
        parts = nodes + segment.transfer_seconds + segment.launch_seconds
        assert parts == pytest.approx(segment.predicted_seconds)


GELU = f"""{HEAD} g (float[64, 64] x) => (float[64, 64] y) {{
    two = Constant <value = float {{1.4142135}}> () one = Constant <value = float {{1.0}}> ()
    half = Constant <value = float {{0.5}}> ()
    a = Div (x, two) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half)
}}"""


def test_nodes_of_fused_atoms_have_separate_prices_on_the_cpu():
    report = nna.partition_report(model_of(GELU), "cpu")
    seconds = {node.name: node.predicted_seconds for node in report.nodes if node.state == "runs"}
    assert len(seconds) == 5 and min(seconds.values()) > 0
    assert sum(seconds.values()) == pytest.approx(
        report.segments[0].predicted_seconds - report.segments[0].launch_seconds
    )
    among = nna.partition_report(model_of(GELU), SIMULATED, options={"policy": "latency"})
    assert {node.name: node.predicted_seconds for node in among.nodes if node.state == "runs"} == pytest.approx(seconds)


def test_priority_notes_missing_costs():
    report = nna.partition_report(model_of(SMALL), "fake_npu")
    assert report.cost is None and "nnadapter calibrate fake_npu" in report.cost_note
    assert report.cost_note in " ".join(str(report).split())
    assert all(segment.predicted_seconds is None for segment in report.segments)


@pytest.mark.parametrize("policy", ["latency", "measured"])
def test_results_equal_the_cpu(policy):
    model, feed = model_of(LARGE), {"x": numbers(1, 64, 64, 64)}
    with nna.InferenceSession(model, devices=[SIMULATED], options=nna.Options(policy=policy)) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-3, atol=1e-3)


def test_pins_and_bans_place_nodes():
    rules = nna.Rules(pins=(nna.Pin(device="cpu", op_type="Sin"),), bans=(nna.Ban(device="fake_npu", name="Neg*"),))
    report = nna.partition_report(model_of(SMALL), "fake_npu", options={"rules": rules})
    assert devices_of(report) == {"Relu": "fake_npu", "Sin": "cpu", "Neg": "cpu"}
    assert [rule.nodes for rule in report.rules] == [1, 1]
    assert {node.op_type: [r.reason for r in node.refusals] for node in report.nodes}["Sin"] == ["rule"]


def test_rule_without_effect_is_reported():
    rules = nna.Rules(bans=(nna.Ban(device="fake_npu", op_type="Conv"),))
    report = nna.partition_report(model_of(SMALL), "fake_npu", options={"rules": rules})
    assert report.rules[0].nodes == 0 and "Conv" in str(report)


def test_rules_of_a_file_report_their_source(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_bytes(
        b'[[ban]]\r\ndevice = "fake_npu"\r\nop_type = "Sin"\r\n\r\n[limits]\r\nmin_nodes = 1\r\nmax_segments = 1\r\n'
    )
    report = nna.partition_report(model_of(SMALL), SIMULATED, options={"rules": path})
    assert [rule.source for rule in report.rules] == [f"{each} in {path}" for each in ("ban 1", "max_segments")]
    for rule in report.rules:
        assert " ".join(str(report).split()).count(f"({rule.source})") == 1


def test_rules_in_a_file_hold_in_sessions(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_bytes(b'[[pin]]\r\ndevice = "cpu"\r\nop_type = "Sin"\r\n')
    feed = {"x": numbers(2, 4)}
    with nna.InferenceSession(model_of(SMALL), devices="fake_npu", options={"rules": path}) as session:
        session.run(None, feed)
        assert devices_of(session.report())["Sin"] == "cpu"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ('[[pin]]\ndevice = "fake_npu"\nop_type = "Sin"\n', "pin 1 in .*refuses it: switched_off"),
        ('[[pin]]\ndevice = "cpu"\nop_type = "Sin"\n[[pin]]\ndevice = "fake_npu"\nname = "Sin*"\n', "two devices"),
        ('[[ban]]\ndevice = "cpu"\nop_type = "Sin"\n', "leaves node .* without a device"),
        ('[[ban]]\ndevise = "cpu"\n', "devise"),
        ("[limits]\nmin_benefit_ms = 1\n", "calibrate"),
    ],
)
def test_unsatisfiable_rules_are_refused(rules, message):
    off = ("fake_npu", {"switched_off": "Sin"})
    with pytest.raises(RulesError, match=message):
        nna.partition_report(model_of(SMALL), off, options={"rules": rules})


@pytest.mark.parametrize(
    ("limits", "away"),
    [
        ({"max_segments": 1}, 1),
        ({"max_segments": 2}, 2),
        ({"min_nodes": 2}, 0),
        ({"whole_graph": True}, 0),
        ({"min_benefit_ms": 1e6}, 0),
        ({"min_benefit_ms": 1e-6}, 2),
    ],
)
def test_limits_drop_segments(limits, away):
    off = ("fake_npu", {"clock": "simulated", "switched_off": "Sin"})
    rules = nna.Rules(limits=nna.Limits(**limits))
    report = nna.partition_report(model_of(LARGE), off, options={"rules": rules, "fallback": "allow"})
    assert sum(segment.device == "fake_npu" for segment in report.segments) == away


def test_broken_pin_is_an_error():
    rules = nna.Rules(pins=(nna.Pin(device="trial", op_type="Sin"),))
    with pytest.raises(RulesError, match="Sin_1.*trial"), pytest.warns(FallbackWarning):
        nna.InferenceSession(
            model_of(SMALL), devices=[("trial", {"fails_on": "SIN"})], options=nna.Options(rules=rules)
        )


def test_a_plan_is_saved_bound_and_used(tmp_path):
    path = tmp_path / "plan.json"
    off = ("fake_npu", {"switched_off": "Sin"})
    saved = nna.partition_report(model_of(SMALL), off, save_plan=path)
    assert [entry.device for entry in read_plan(path).entries] == ["fake_npu", "cpu", "fake_npu"]
    report = nna.partition_report(model_of(SMALL), "fake_npu", options={"plan": path})
    assert devices_of(report) == devices_of(saved)
    assert report.plan_file.matched_nodes == 3 and not report.plan_file.unmatched_entries
    feed = {"x": numbers(2, 4)}
    with nna.InferenceSession(model_of(SMALL), devices="fake_npu", options={"plan": path}) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model_of(SMALL), feed)[0], rtol=1e-5)
        assert len(session.report().segments) == 3


def test_plan_file_matches_an_edited_model_in_part(tmp_path):
    path = tmp_path / "plan.json"
    nna.partition_report(model_of(SMALL), ("fake_npu", {"switched_off": "Sin"}), save_plan=path)
    edited = model_of(SMALL.replace("b = Sin (a) y = Neg (b)", "b = Sin (a) c = Cos (b) y = Exp (c)"))
    report = nna.partition_report(edited, "fake_npu", options={"plan": path})
    assert devices_of(report) == {"Relu": "fake_npu", "Sin": "cpu", "Cos": "fake_npu", "Exp": "fake_npu"}
    assert [unmatched_entry.name for unmatched_entry in report.plan_file.unmatched_entries] == ["Neg_2"]
    assert "Neg_2" in str(report)


def test_plan_file_overrides_latency(tmp_path):
    path = tmp_path / "plan.json"
    nna.partition_report(model_of(SMALL), "fake_npu", save_plan=path)
    report = nna.partition_report(model_of(SMALL), SIMULATED, options={"plan": path, "policy": "latency"})
    assert set(devices_of(report).values()) == {"fake_npu"}


@pytest.mark.parametrize(
    "change", [lambda text: text[:-20], lambda text: text.replace('"format_version": 1', '"format_version": 9')]
)
def test_unreadable_plan_file_is_an_error(tmp_path, change):
    path = tmp_path / "plan.json"
    nna.partition_report(model_of(SMALL), "fake_npu", save_plan=path)
    path.write_text(change(path.read_text()))
    with pytest.raises(PlanFileError, match=r"plan\.json"):
        nna.InferenceSession(model_of(SMALL), devices="fake_npu", options={"plan": path})


def test_measured_choice_is_cached(tmp_path):
    # a sole candidate cannot be in doubt
    feed, given = {"x": numbers(2, 4)}, {"policy": "measured", "fallback": "forbid"}
    for how in ("the input of the first run", "an earlier session"):
        with nna.InferenceSession(model_of(SMALL), devices="fake_npu", options=given) as session:
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model_of(SMALL), feed)[0], rtol=1e-5)
            report = session.report()
        assert how in report.cost.note
        assert report.cost.sources == {"fake_npu": "measured", "cpu": "measured"}
        measured = [candidate.measured_seconds for candidate in report.cost.candidates if candidate.eligible]
        assert report.cost.seconds == measured[0]
    known = nna.partition_report(model_of(SMALL), "fake_npu", options=given)
    assert devices_of(known) == devices_of(report) and known.cost.seconds == report.cost.seconds
    (file,) = (tmp_path / "cache" / "measured").iterdir()
    timed = json.loads(file.read_text())["timed"]
    assert [each["seconds"] for each in timed] == measured
    assert {each["origin"]["kind"] for each in timed} == {"everything_supported"}


def test_unmeasured_report_has_a_note():
    report = nna.partition_report(model_of(SMALL), "fake_npu", options={"policy": "measured", "fallback": "allow"})
    assert any("not measured yet" in note for note in report.notes)


def test_measured_without_fallback_uses_only_named_devices():
    options = nna.Options(policy="measured", fallback="forbid")
    with nna.InferenceSession(model_of(SMALL), devices="fake_npu", options=options) as session:
        session.run(None, {"x": numbers(2, 4)})
        assert set(devices_of(session.report()).values()) == {"fake_npu"}


def test_each_shape_is_measured_separately():
    model = model_of(SMALL.replace("float[2, 4]", "float[n, 4]"))
    with nna.InferenceSession(model, devices="fake_npu", options={"policy": "measured"}) as session:
        for rows in (1, 3):
            feed = {"x": numbers(rows, 4)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-5)
            assert session.report().input_shapes == {"x": (rows, 4)}
        session.prepare({"x": (7, 4)})
        assert "random input" in session.report().cost.note


def test_candidates_beyond_device_memory_are_compared_again():
    small = ("fake_npu", {"clock": "simulated", "memory_bytes": 2_000_000})
    report = nna.partition_report(model_of(LARGE), small, options={"policy": "latency", "fallback": "allow"})
    assert report.cost.seconds <= report.cost.all_cpu_seconds
    assert report.cost.bound_seconds <= report.cost.seconds and "refused the cheapest" in report.cost.note


def test_latency_without_fallback_uses_only_named_devices():
    options = {"policy": "latency", "fallback": "forbid"}
    with nna.InferenceSession(model_of(SMALL), devices=SIMULATED, options=options) as session:
        assert set(devices_of(session.report()).values()) == {"fake_npu"}


@pytest.mark.parametrize("policy", ["priority", "latency", "measured"])
@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
def test_plan_file_splits_fused_nodes(tmp_path, policy, device):
    path = tmp_path / "plan.json"
    model = model_of(LARGE.replace("b = Sin (a)", "b = Relu (a)"))
    weights = np.ones((64, 64, 3, 3), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    nna.partition_report(
        model,
        SIMULATED,
        options={
            "rules": nna.Rules(
                pins=(nna.Pin(device=device, op_type="Relu"),), bans=(nna.Ban(device=device, op_type="Conv"),)
            )
        },
        save_plan=path,
    )
    result = nna.partition_report(model, SIMULATED, options={"plan": path, "policy": policy, "fallback": "allow"})
    assert devices_of(result) == {"Conv": {"cpu": "fake_npu", "fake_npu": "cpu"}[device], "Relu": device}
    assert not result.plan_file.unmatched_entries


@pytest.mark.parametrize("fault", ["compile", "compute"])
def test_failing_candidate_is_not_chosen(fault):
    options = nna.Options(policy="measured", fallback="allow")
    with nna.InferenceSession(model_of(SMALL), devices=("trial", {"fault": fault}), options=options) as session:
        session.run(None, {"x": numbers(2, 4)})
        assert [candidate.name for candidate in session.report().cost.candidates] == ["all on cpu"]


def test_measurement_under_another_fallback_policy_is_not_reused():
    feed = {"x": numbers(2, 4)}
    for fallback, expected in (("forbid", {"everything supported"}), ("allow", {"everything supported", "all on cpu"})):
        options = nna.Options(policy="measured", fallback=fallback)
        with nna.InferenceSession(model_of(SMALL), devices="fake_npu", options=options) as session:
            session.run(None, feed)
            assert {candidate.name for candidate in session.report().cost.candidates} == expected


def test_constant_model_is_measured_too():
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Constant <value = float[2] {{1, 2}}> () }}"
    )
    with nna.InferenceSession(model, devices="fake_npu", options={"policy": "measured"}) as session:
        np.testing.assert_array_equal(session.run(None, {"x": numbers(2)})[0], [1, 2])


def test_unusable_cached_choice_is_measured_again(tmp_path):
    options = nna.Options(policy="measured", fallback="forbid")
    with nna.InferenceSession(model_of(SMALL), devices="fake_npu", options=options) as session:
        session.prepare({"x": (2, 4)})
    (file,) = (tmp_path / "cache" / "measured").iterdir()
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "devices": ["away"] * len(kept["devices"])}))
    with nna.InferenceSession(model_of(SMALL), devices="fake_npu", options=options) as session:
        session.run(None, {"x": numbers(2, 4)})
        note = session.report().cost.note
    assert "measured here" in note.lower() and "does not fit" in note


def test_idle_device_needs_no_warning():
    with nna.InferenceSession(
        model_of(SMALL),
        devices=("fake_npu", {"clock": "simulated", "switched_off": "Sin"}),
        options={"policy": "latency"},
    ) as session:
        assert set(devices_of(session.report()).values()) == {"cpu"}


def test_cpu_chosen_by_rules_is_not_called_better():
    rules = nna.Rules(bans=(nna.Ban(device="fake_npu", name="*"),))
    report = nna.partition_report(
        model_of(LARGE), SIMULATED, options={"policy": "latency", "rules": rules, "fallback": "allow"}
    )
    assert set(devices_of(report).values()) == {"cpu"} and "alone is better" not in str(report)


@pytest.mark.parametrize("policy", ["priority", "latency", "measured"])
@pytest.mark.parametrize("by", ["plan", "rules"])
def test_all_cpu_is_priced_despite_plans_and_pins(policy, by, tmp_path):
    if by == "plan":
        said = {"plan": tmp_path / "plan.json"}
        nna.partition_report(model_of(SMALL), SIMULATED, save_plan=said["plan"])
    else:
        said = {"rules": nna.Rules(pins=(nna.Pin(device="fake_npu", name="*"),))}
    report = nna.partition_report(model_of(SMALL), SIMULATED, options={"policy": policy, **said})
    alone = nna.partition_report(model_of(SMALL), "cpu")
    assert set(devices_of(report).values()) == {"fake_npu"}
    assert report.cost.all_cpu_seconds == pytest.approx(alone.cost.seconds) and report.cost.cpu_is_better
    assert report.segments[0].benefit_seconds == pytest.approx(-report.cost.seconds, rel=0.5)
    words = {"plan": "the plan file", "rules": "the rules"}[by]
    text = " ".join(str(report).split())
    assert "the CPU alone is better" in text and "the CPU alone is better" in report.to_markdown()
    if policy != "priority":
        assert f"for any placement that obeys {words} (" in text and "all on cpu, for comparison" in text


@pytest.mark.parametrize("policy", ["priority", "latency"])
def test_report_lists_plan_entries_dropped_by_limits(policy, tmp_path):
    path, off = tmp_path / "plan.json", ("fake_npu", {"clock": "simulated", "switched_off": "Sin"})
    nna.partition_report(model_of(LARGE), off, save_plan=path)
    limits = nna.Rules(limits=nna.Limits(max_segments=1))
    report = nna.partition_report(model_of(LARGE), off, options={"policy": policy, "plan": path, "rules": limits})
    (lost,) = report.plan_file.unmatched_entries
    assert report.plan_file.matched_nodes == 2 and lost.device == "fake_npu"
    assert {node.name: node.device for node in report.nodes}[lost.name] == "cpu"
    assert lost.reason.startswith("it is on 'cpu', because 'fake_npu' does not get it: rule: the limit max_segments")


def test_global_lower_bound_is_labelled():
    text = " ".join(str(nna.partition_report(model_of(LARGE), SIMULATED, options={"policy": "latency"})).split())
    assert "for any placement (" in text and "for comparison" not in text


@pytest.mark.sweep
def test_measured_report_separates_measurements_and_predictions(tmp_path):
    options, feed = {"policy": "measured"}, {"x": numbers(1, 64, 64, 64)}
    before = nna.partition_report(model_of(LARGE), SIMULATED, options=options).cost
    with nna.InferenceSession(model_of(LARGE), devices=[SIMULATED], options=options) as session:
        session.run(None, feed)
        report = session.report()
        measured = report.cost
    again = nna.partition_report(model_of(LARGE), SIMULATED, options=options)
    for cost in (measured, again.cost) if again.cost.word == "measured" else (measured,):  # the alternative is doubt
        assert cost.word == "measured" and cost.prediction_sources == before.sources
        predicted = {candidate.name: candidate.seconds for candidate in cost.candidates}
        assert predicted.items() <= {candidate.name: candidate.seconds for candidate in before.candidates}.items()
        assert cost.predicted_seconds == pytest.approx(sum(segment.predicted_seconds for segment in report.segments))
    assert "rests on other costs, of fake_npu: simulated, cpu: modeled" in " ".join(str(report).split())


def test_all_cpu_is_predicted_if_only_the_plan_was_measured(tmp_path):
    options = {"policy": "measured", "plan": tmp_path / "plan.json"}
    nna.partition_report(model_of(SMALL), SIMULATED, save_plan=options["plan"])
    with nna.InferenceSession(model_of(SMALL), devices=[SIMULATED], options=options) as session:
        session.run(None, {"x": numbers(2, 4)})
        report = session.report()
    assert report.cost.word == "measured" and report.cost.all_cpu_seconds is None and report.cost.cpu_is_better
    assert "guessed for this plan" in " ".join(str(report).split())


def test_every_policy_has_a_placer() -> None:
    assert PLACERS.keys() == POLICIES.keys()


@pytest.mark.slow
def test_throughput_distributes_work_that_latency_keeps_together() -> None:
    model = model_of(f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Relu (x) b = Neg (a) c = Abs (b) y = Neg (c) }}")
    devices = ["latency:0", "latency:1"]
    shares = {}
    for policy in ("latency", "throughput"):
        options = nna.Options(policy=policy, fallback="forbid")
        with nna.InferenceSession(model, devices=devices, options=options) as session:
            (result,) = session.run(None, {"x": np.array([1, -2], np.float32)})
            assert result.tolist() == [-1, 0]
            shares[policy] = [step.device for step in session.provenance.steps]
            note = str(session.report().cost.note)
    assert len(shares["latency"]) == 1
    assert sorted(shares["throughput"]) == ["latency", "latency:1"]
    assert "takes 2 ms per input; in any placement the busiest takes at least 2 ms" in note


def test_devices_that_share_processors_are_placed_by_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Relu (x) b = Neg (a) c = Abs (b) y = Neg (c) }}")
    options = nna.Options(policy="throughput", fallback="forbid", cache_dir=False)

    def told(*, shared: bool) -> tuple[list[str], str]:
        monkeypatch.setattr(DeviceCosts, "needs_processors", property(lambda _: shared))
        with nna.InferenceSession(model, devices=["latency:0", "latency:1"], options=options) as session:
            session.run(None, {"x": np.array([1, -2], np.float32)})
            assert session.provenance is not None
            return [step.device for step in session.provenance.steps], str(session.report().cost.note)

    devices, note = told(shared=True)
    assert len(devices) == 1
    assert "Placed as by policy latency: all devices share the processors" in note
    devices, note = told(shared=False)
    assert sorted(devices) == ["latency", "latency:1"]
