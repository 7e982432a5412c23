"""The JSON form: its keys, round trip, and agreement with the model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx.parser

import nnadapter as nna
from tests.models import CHAIN, HEAD, SANDWICH, numbers, parse

KEYS = {
    "": "schema_version devices policy input_shapes coverage segments nodes switches exact notes plans caches "
    "weights cost cost_note rules plan_file model fallback device_options isolated precisions lower_defaults "
    "precision_choice search refusal_costs versions "
    "branch_decisions machine boundaries transfers incidents incident_counts",
    "coverage": "nodes flops bytes",
    "segments": "index device nodes inputs outputs flops weight_bytes facts seconds unknown_flops_nodes failures "
    "predicted_seconds transfer_seconds launch_seconds benefit_seconds compile_seconds program_of "
    "cache",
    "nodes": "name op_type domain state device segment runs_as flops nbytes refusals bodies predicted_seconds",
}


def sandwich():
    return nna.partition_report(parse(SANDWICH), [("fake_npu", {"switched_off": "Sin"})], {"x": (2, 4)})


def test_keys_are_documented():
    data = sandwich().to_dict()
    assert list(data) == KEYS[""].split()
    assert list(data["coverage"]) == KEYS["coverage"].split()
    assert list(data["segments"][0]) == KEYS["segments"].split()
    assert list(data["nodes"][0]) == KEYS["nodes"].split()
    page = (Path(__file__).parents[2] / "docs" / "reference" / "report-keys.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in page for keys in KEYS.values() for key in keys.split())


def test_json_round_trip():
    found = sandwich()
    assert json.loads(found.to_json()) == found.to_dict()


def test_nodes_and_segments_agree():
    data = sandwich().to_dict()
    assert [node["op_type"] for node in data["nodes"]] == ["Relu", "Sin", "Neg", "Cos", "Add"]
    for segment in data["segments"]:
        members = [node["name"] for node in data["nodes"] if node["segment"] == segment["index"]]
        assert sorted(members) == sorted(segment["nodes"])
    assert data["coverage"]["nodes"] == 4 / 5
    assert data["nodes"][1]["refusals"][0]["reason"] == "switched_off"


def test_bytes_of_a_node_count_every_value_once():
    text = f"""{HEAD} g (float[2, 3] x, int8[N] i) => (float[2, 3] y, int8[N] j, float16[2, 3] h)
        <float[3] w = {{1, 2, 3}}> {{
        a = Add(x, w) b = Mul(a, a) y, m = Dropout(b) j = Identity(i) h = Cast<to = 10>(y) z = NonZero(a) k = Size(z)
    }}"""
    found = nna.partition_report(onnx.parser.parse_model(text), "fake_npu", {"i": (5,)})
    sizes = {node.op_type: node.nbytes for node in found.nodes if node.state == "runs"}
    assert sizes == {"Add": 24 + 12 + 24, "Mul": 24 + 24, "Dropout": 24 + 24 + 6, "Identity": 10, "Cast": 24 + 12}


def test_nonfinite_numbers_become_null():
    found = sandwich()
    facts = {"utilization": float("nan"), "cycles": np.int64(7), "peak": np.float32("inf")}
    segments = (dataclasses.replace(found.segments[0], facts=facts), *found.segments[1:])
    data = json.loads(dataclasses.replace(found, segments=segments).to_json())
    assert data["segments"][0]["facts"] == {"utilization": None, "cycles": 7, "peak": None}


def test_a_session_adds_times_and_counts():
    with nna.InferenceSession(parse(CHAIN), devices="fake_npu") as session:
        session.run(None, {"x": numbers(2, 3)})
        data = session.report().to_dict()
    assert data["segments"][0]["seconds"] > 0
    assert data["plans"].pop("memory_bytes") > 0
    assert data["plans"] == {
        "in_cache": 1,
        "compiled": 1,
        "reused": 1,
        "evicted": 0,
        "served_shapes_text": "",
    }
