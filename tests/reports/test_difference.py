"""Differences between two reports, counted by hand; and strict reading of reports."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import nnadapter as nna
from nnadapter.cli import main
from nnadapter.errors import InvalidOptionError
from nnadapter.report import compare_reports, read_report, report_from
from tests.models import CHAIN, SANDWICH, numbers, parse
from tests.reports.made import made_report, measured, priced


def real(**options):
    return nna.partition_report(parse(SANDWICH), [("fake_npu", options)], {"x": (2, 4)})


def test_moved_node_is_listed():
    found = compare_reports(real(), real(switched_off="Sin"))
    (moved,) = found.moved_nodes
    assert (moved.op_type, moved.old_place, moved.new_place) == ("Sin", "fake_npu", "cpu")
    (change,) = found.refusals
    assert (change.op_type, change.reason, change.old_count, change.new_count) == ("Sin", "switched_off", 0, 1)
    figures = {figure.name: (figure.old_value, figure.new_value) for figure in found.figures}
    assert figures["segments"] == (1, 3) and figures["nodes off the CPU"] == (1, 0.8)


def unlike(**changes):
    cost = dataclasses.replace(priced(made_report()).cost, **changes.pop("cost", {}))
    return dataclasses.replace(priced(made_report()), cost=cost, **changes)


@pytest.mark.parametrize(
    ("changes", "name", "said", "verdict"),
    [
        ({"devices": ("npu", "gpu", "cpu")}, "devices", "npu, cpu -> npu, gpu, cpu", "better"),
        ({"policy": "latency"}, "policy", "priority -> latency", ""),
        ({"fallback": "forbid"}, "fallback", "warn -> forbid", "better"),
        ({"input_shapes": {"x": (2, 4)}}, "inputs", "x[1, 4] -> x[2, 4]", ""),
        ({"model": "other.onnx"}, "model", "m.onnx -> other.onnx", "better"),
        ({"rules": ()}, "rules", "-> none", "better"),
        ({"plan_file": None}, "plan file", "plan.json -> none", "better"),
        ({"device_options": {"npu": {"off": "a"}}}, "options of npu", "clock=real -> off=a, clock=nothing", "better"),
        ({"cost": {"sources": {"npu": "measured", "cpu": "measured"}}}, "costs", "-> npu: measured, cpu: measured", ""),
    ],
)  # fmt: skip
def test_differing_conditions_come_first(changes, name, said, verdict):
    common = {"model": "m.onnx", "fallback": "warn", "device_options": {"npu": {"off": "", "clock": "real"}}}
    less = {**changes.pop("cost", {}), "seconds": 0.0035}
    found = compare_reports(unlike(**common), unlike(**{**common, **changes}, cost=less))
    assert [each.name for each in found.conditions] == [name]
    lines = str(found).splitlines()
    assert lines[0] == "the two reports were made under different conditions" and said in lines[1]
    assert "made under different conditions" in found.to_markdown().split("|")[0]
    assert next(line for line in lines if "4.00 ms" in line).split()[-1] == (verdict or "changed")


def test_reports_of_two_models_are_not_ranked():
    found = compare_reports(made_report(40, every=2), made_report(names=[f"other/{at}" for at in range(9)]))
    assert [each.name for each in found.conditions] == ["another model"] and not {
        each.better for each in found.figures
    } - {0}
    assert "40 nodes -> 9 nodes, with no common name" in str(found)


def test_reports_have_model_fallback_and_device_options(tmp_path):
    (tmp_path / "m.onnx").write_bytes(parse(SANDWICH).SerializeToString())
    report = nna.partition_report(tmp_path / "m.onnx", [("fake_npu", {"switched_off": "Sin"})], {"x": (2, 4)})
    assert (report.model, report.fallback) == ("m.onnx", "warn")
    assert report.device_options["fake_npu"]["switched_off"] == "Sin"
    (condition,) = compare_reports(real(), real(switched_off="Sin")).conditions
    assert (condition.name, condition.new_value) == ("options of fake_npu", "switched_off=Sin")


def test_equal_reports_have_no_differences():
    found = compare_reports(real(), real())
    assert not (found.moved_nodes or found.added_nodes or found.removed_nodes or found.refusals)
    assert "no node moved" in str(found) and found.to_markdown().startswith("### Nothing changed\n")


@given(
    before=st.lists(st.sampled_from("abcde"), min_size=1, max_size=8),
    after=st.lists(st.sampled_from("abcde"), min_size=1, max_size=8),
)
def test_nodes_are_matched_by_name_and_order(before, after):
    old, new = made_report(names=before), made_report(names=after, every=2)
    found = compare_reports(old, new)
    assert Counter(found.added_nodes) == Counter(after) - Counter(before)
    assert Counter(found.removed_nodes) == Counter(before) - Counter(after)
    places = [
        {name: [node.device for node in report.nodes if node.name == name] for name in "abcde"} for report in (old, new)
    ]
    expected = sum(was != now for name in "abcde" for was, now in zip(places[0][name], places[1][name], strict=False))
    assert len(found.moved_nodes) == expected


def test_text_and_markdown_agree():
    found = compare_reports(made_report(60, every=2), priced(made_report(60)))
    for text in (str(found), found.to_markdown()):
        assert "nodes moved" in text and "better" in text and "4.00 ms" in text
    assert "npu -> cpu: 10" in str(found) and "cpu -> npu: 20" in str(found)
    assert "... and 10 more" in str(found)


def test_mappings_are_compared_like_reports():
    old, new = real(), real(switched_off="Sin")
    assert compare_reports(old.to_dict(), new.to_dict()).to_dict() == compare_reports(old, new).to_dict()


@pytest.mark.parametrize("report", [real(), priced(made_report()), made_report(1)], ids=["real", "priced", "small"])
def test_reports_round_trip_through_json(report, tmp_path):
    (tmp_path / "old.json").write_text(report.to_json(), encoding="utf-8")
    assert read_report(tmp_path / "old.json") == report


def test_session_report_round_trips_through_json():
    with nna.InferenceSession(parse(CHAIN), devices="fake_npu") as session:
        session.run(None, {"x": numbers(2, 3)})
        report = session.report()
    assert report_from(json.loads(report.to_json())) == report


def test_missing_newer_keys_and_unknown_keys_are_accepted():
    data = real().to_dict()
    for key in ("cost", "rules", "plan_file", "weights"):
        del data[key]
    data["color"] = "green"
    for node in data["nodes"]:
        del node["predicted_seconds"]
    assert report_from(data).nodes == real().nodes


def damaged(change):
    data = json.loads(priced(made_report()).to_json())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (real().to_json()[:-200], "cut off: "),
        ("", "cut off: "),
        ("\udcff".encode("utf-8", "surrogateescape"), "not UTF-8 at byte 0"),
        ('{"schema_version": NaN}', "NaN is not a finite number"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "it is not a report: "),
        ('{"nodes": []}', "it has no key 'schema_version'"),
        (
            damaged(lambda data: data.update(schema_version=3)),
            "key 'schema_version': expected at most 2, got 3; update nnadapter",
        ),
        (damaged(lambda data: data.update(schema_version=True)), "key 'schema_version': expected 2, got True"),
        (
            '{"schema_version": 1, "segments": ' + "[" * 900 + "]" * 900 + "}",
            "segments 1: expected an object, got a list of 1",
        ),
        (damaged(lambda data: data.pop("nodes")), "key 'nodes': it is missing"),
        (damaged(lambda data: data["nodes"][3].update(name=7)), "nodes 4, key 'name': expected a text, got 7"),
        (
            damaged(lambda data: data["nodes"][0].update(flops=True)),
            "nodes 1, key 'flops': expected a whole number or nothing, got True",
        ),
        (
            damaged(lambda data: data["coverage"].update(nodes="all")),
            "coverage, key 'nodes': expected a number, got 'all'",
        ),
        (damaged(lambda data: data.update(segments={})), "key 'segments': expected a list, got an object"),
        (damaged(lambda data: data["cost"].pop("seconds")), "cost, key 'seconds': it is missing"),
        (damaged(lambda data: data["nodes"][0].update(device="gpu")), "node 'node/0' is on a device"),
        (damaged(lambda data: data["nodes"][0].update(segment=99)), "node 'node/0' is on a device or in a segment"),
        (damaged(lambda data: data["segments"].pop(0)), "not numbered from 0"),
        (
            damaged(lambda data: data["segments"][0].update(device="gpu")),
            "segments 1: segment 0 is on 'gpu', which is not a device of the report",
        ),
    ],
)
def test_invalid_report_is_a_short_error(tmp_path, text, said):
    path = tmp_path / "old.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidOptionError) as raised:
        read_report(path)
    assert said in str(raised.value) and "old.json" in str(raised.value) and len(str(raised.value)) < 400


def test_version_1_report_is_read():
    report = read_report(Path(__file__).with_name("version_1.json"))
    written = report.to_dict()
    assert report_from(written) == report and written["schema_version"] == 2
    assert written["plans"] == {
        "in_cache": 2,
        "compiled": 3,
        "reused": 9,
        "evicted": 1,
        "memory_bytes": 128,
        "served_shapes_text": "2 plans for all input shapes",
    }
    assert report.branch_decisions_text == "flag is true" and report.branch_decisions[0].value is True
    assert (report.transfers.to_device, report.transfers.bytes_to_device, report.transfers.round_trips) == (1, 16, 1)
    assert (report.transfers.to_host, report.transfers.bytes_to_host) == (2, 32)
    boundaries = report.boundaries
    assert [operation.kind for operation in boundaries.operations] == ["cast"]
    assert [value.value for value in boundaries.device_resident] == ["w"]
    assert [wait.waiting_segment for wait in boundaries.host_waits] == [1]
    assert (boundaries.enqueued_segments, boundaries.threaded_segments) == ((0,), (1,))
    assert report.incidents[0].fallback_action == "it was repeated, and went well"
    assert report.segments[0].cache.miss_reason == "another driver" and report.segments[0].unknown_flops_nodes == 1
    assert report.plan_file.matched_nodes == 11
    assert report.plan_file.unmatched_entries[0].reason == "no node has this name"
    assert all(candidate.eligible for candidate in report.cost.candidates)


@pytest.fixture
def broken_gates(monkeypatch):
    """Return a function that returns the command line's messages about broken limits."""

    def broken(report, limits=""):
        monkeypatch.setattr(nna, "partition_report", lambda *_, **__: report)
        result = CliRunner().invoke(main, ["report", "m.onnx", *limits.split()])
        lines = result.stderr.splitlines()
        assert result.exit_code == (1 if lines else 0)
        assert all(line.startswith("Error: ") for line in lines)
        return [line.removeprefix("Error: ") for line in lines]

    return broken


def test_gates(broken_gates):
    report = priced(made_report(12))
    assert broken_gates(report) == []
    assert broken_gates(report, f"--min-coverage {8 / 12} --max-segments 8 --max-latency 4") == []
    broken = broken_gates(report, "--min-coverage 0.7 --max-segments 7 --max-latency 3.9")
    assert [line.split(" is ")[0].split(" has ")[0] for line in broken] == [
        "coverage",
        "the plan",
        "the guessed cost",
    ]


def test_latency_gate_names_measured_costs(broken_gates):
    (broken,) = broken_gates(measured(made_report()), "--max-latency 2")
    assert broken.startswith("the measured cost is 2.10 ms")


def test_latency_gate_requires_costs(monkeypatch):
    monkeypatch.setattr(nna, "partition_report", lambda *_, **__: made_report())
    result = CliRunner().invoke(main, ["report", "m.onnx", "--max-latency", "1000"])
    assert result.exit_code == 2 and "latency cannot be checked, because the plan's cost is not known" in result.stderr


def test_weights_shared_by_segments_count_once():
    shared = """<ir_version: 10, opset_import: ["" : 17]> shared (float[2, 3] x) => (float[2, 3] y)
        <float[3] w = {1, 2, 3}> {
        a = Add(x, w)
        b = Sin(a)
        c = Mul(b, w)
        d = Sin(c)
        y = Sub(d, w)
    }"""
    report = nna.partition_report(parse(shared), [("fake_npu", {"switched_off": "Sin"})])
    assert [segment.weight_bytes for segment in report.segments] == [12, 0, 12, 0, 12]
    assert report.weights.total == 12 and report.weights.devices == {"fake_npu": 12, "cpu": 0}
    report = nna.partition_report(parse(shared), [("fake_npu", {"switched_off": "Mul"})])
    assert report.weights.devices == {"fake_npu": 12, "cpu": 12} and report.weights.total == 12


def test_nonfinite_facts_are_read_as_null():
    report = made_report(1)
    facts = {"utilization": float("nan"), "cycles": 7}
    changed = dataclasses.replace(report, segments=(dataclasses.replace(report.segments[0], facts=facts),))
    assert report_from(changed.to_dict()).segments[0].facts == {"utilization": None, "cycles": 7}
    assert "utilization not finite" in str(report_from(changed.to_dict()))
