"""The text form: contents, order and width."""

from __future__ import annotations

import dataclasses
import re

import pytest

import nnadapter as nna
from nnadapter.planning import UnmatchedEntry
from nnadapter.report import PlanFileFacts, count, quantity, verdict
from nnadapter.report.builder import _search
from partition import Plan, Step
from tests.models import CHAIN, HEAD, SANDWICH, parse

FOLDING = f"""{HEAD} folding (float[2, 3] x) => (float[2, 3] y) <float[3] w = {{1, 2, 3}}> {{
    a = Neg(w)
    b = Exp(x)
    y = Mul(b, a)
}}"""


def report(text, **options):
    shapes = {"x": (2, 4)} if "[N" in text else None
    return nna.partition_report(parse(text), [("fake_npu", options)], shapes)


def test_summary_comes_first():
    lines = str(report(CHAIN)).splitlines()
    assert lines[0] == "devices    fake_npu, cpu (policy priority)"
    assert lines[1] == "inputs     x[2, 3]"
    assert lines[2] == "nodes      4: 4 run, 0 folded before the run, 0 unused"
    assert any(line.startswith("coverage   100.0% of nodes") for line in lines)


DECIDED = """ g (float[2, 3] x, float[3, 3] w) => (float y) {
    a = MatMul(x, w)  b = NonZero(a)  c = Cast <to = 1> (b)  d = Relu(c)  y = ReduceSum <keepdims = 0> (d)
}"""


def test_unknown_flops_are_excluded_and_reported():
    """Relu has a formula, but its input size is known only at run time."""
    made = nna.partition_report(parse(HEAD + DECIDED), devices="fake_npu")
    text = str(made)
    assert made.unknown_flops_nodes == 4 and [each.unknown_flops_nodes for each in made.segments] == [0, 4]
    assert "20.0% of nodes, 100.0% of known FLOPs" in text and "or their sizes are known only at run time" in " ".join(
        text.split()
    )
    assert re.search(r"^0 +fake_npu +1 +36 FLOP ", text, re.MULTILINE)
    assert re.search(r"^1 +cpu +4 +\? ", text, re.MULTILINE)
    assert "100.0% of known FLOPs" in made.to_markdown() and "| `cpu` | 4 | ? |" in made.to_markdown()
    assert "100.0% of known FLOPs" in " ".join(verdict(made).more)
    assert "4 nodes, ?" in made.to_dot()


def test_flop_share_is_omitted_without_known_flops():
    looped = """ g (float[2] x, int64 n) => (float[2] y) <bool c = {1}> {
        r = Transpose(x)
        y = Loop <body = b (int64 i, bool d, float[2] s) => (bool e, float[2] t) {
            e = Identity(d)  t = Neg(s)
        }> (n, c, r)
    }"""
    made = nna.partition_report(parse(HEAD + looped), devices="fake_npu")
    assert made.unknown_flops_nodes and "% of nodes, FLOPs not known, " in str(made)
    assert "FLOPs not known" in made.to_markdown() and "FLOPs not known" in " ".join(verdict(made).more)


def test_refusals_are_grouped_with_an_example():
    text = str(report(SANDWICH, switched_off="Sin,Cos"))
    assert "  fake_npu: Sin x1  switched_off  causes 2 switches\n      Sin_" in text
    assert "SIN is switched off" in text
    assert "segments   5 (3 off the CPU, the fewest possible), 4 switches between devices" in text


def found(devices, exact):
    """Return a plan with segments on these devices."""
    steps = tuple(
        Step(segment=at, device=device, nodes=(at,), inputs=(), constants=(), outputs=(), released=())
        for at, device in enumerate(devices)
    )
    return Plan(graph=None, devices=(), verdicts={}, placement=(), steps=steps, exact=exact)


@pytest.mark.parametrize(
    ("devices", "exact", "words"),
    [
        ("aba", True, "the search is exact for two devices"),
        ("abca", True, "the search was exact"),
        ("abca", False, "the beam search was bounded"),
        ("abba", False, "a segment was cut in two, because its device refuses it as a whole"),
    ],
)
def test_search_method_is_reported(devices, exact, words):
    assert _search(found(devices, exact)) == words
    shown = dataclasses.replace(report(SANDWICH), exact=exact, search=words)
    fewest = "the fewest possible" if exact else "not proved to be the fewest"
    assert f"{fewest}), 0 switches between devices\n           {words}\n" in str(shown)
    assert f"({fewest}: {words})" in shown.to_markdown() and f"{fewest}: {words}" in shown.to_html()


def test_op_type_rows_count_nodes_per_device():
    rows = {line.split()[0]: line.split() for line in str(report(SANDWICH, switched_off="Sin")).splitlines() if line}
    assert rows["op"] == ["op", "type", "nodes", "fake_npu", "cpu", "FLOPs"]
    assert rows["Sin"][1:4] == ["1", "-", "1"]
    assert rows["Neg"][1:4] == ["1", "1", "-"]
    assert rows["all"] == ["all", "5", "4", "1"]
    assert rows["FLOPs"] == ["FLOPs", "80.0%", "20.0%"]


def test_folded_nodes_have_a_column():
    rows = {line.split()[0]: line.split() for line in str(report(FOLDING)).splitlines() if line}
    assert rows["op"][2:] == ["nodes", "fake_npu", "cpu", "folded", "FLOPs"]
    assert rows["Neg"] == ["Neg", "1", "-", "-", "1", "-"]
    assert rows["nodes"][1:] == ["3:", "2", "run,", "1", "folded", "before", "the", "run,", "0", "unused"]


def test_long_texts_are_wrapped():
    notes = ("something went wrong, " * 20,)
    text = str(dataclasses.replace(report(SANDWICH, switched_off="Sin,Cos,Neg"), notes=notes))
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[-1].startswith("  ")


def test_long_report_counts_omitted_entries():
    body = "\n".join(f"v{i + 1} = {'Sin' if i % 2 else 'Neg'}(v{i})" for i in range(60))
    model = f"{HEAD} long (float[2] v0) => (float[2] v60) {{ {body} }}"
    text = str(report(model, switched_off="Sin"))
    assert "... and 40 more; the JSON form has them all" in text
    assert "fake_npu: Sin x30  switched_off" in text


def test_unmatched_entries_are_grouped_by_reason():
    lost = tuple(UnmatchedEntry(name=f"node/{at}", device="npu", reason=f"why {at // 79}") for at in range(79 * 30))
    plan = PlanFileFacts(path="plan.json", matched_nodes=0, unmatched_entries=lost)
    found = dataclasses.replace(report(SANDWICH), plan_file=plan)
    lines = [line for line in str(found).splitlines() if "node/" in line]
    assert lines[0] == "  node/0, node/1, node/2 and 76 more on npu: why 0" and len(lines) == 20
    assert "... and 10 more reasons" in str(found) and "0 nodes placed, 2370 entries not applied" in str(found)
    assert "node/0, node/1, node/2 and 76 more" in found.to_markdown()


@pytest.mark.parametrize(
    ("number", "unit", "expected"),
    [
        (0, "B", "0 B"),
        (1023, "B", "1023 B"),
        (1536, "B", "1.5 KiB"),
        (999, "FLOP", "999 FLOP"),
        (2.5e9, "FLOP", "2.5 GFLOP"),
    ],
)
def test_quantities_have_units(number, unit, expected):
    assert quantity(number, unit) == expected


def test_counts_have_plurals():
    assert [count(1, "node"), count(2, "node"), count(0, "switch", "switches")] == ["1 node", "2 nodes", "0 switches"]
