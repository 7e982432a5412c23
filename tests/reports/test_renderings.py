"""Markdown, DOT and Model Explorer: complete, and safe for any name."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess

import pytest

from nnadapter.cli.run import run_costs
from nnadapter.report import code, compare_reports, duration, table
from tests.reports.made import HOSTILE, made_report, measured, priced

STRING = r'"(?:[^"\\\n]|\\["\\n])*"'
STATEMENT = re.compile(rf"  (?:\w+=\w+;|\w+(?: -> \w+)? \[\w+=(?:{STRING}|\w+)(?:, \w+=(?:{STRING}|\w+))*\];)")


def hostile():
    return made_report(names=HOSTILE, every=1)


@pytest.mark.parametrize(
    "report", [made_report(40), hostile(), priced(made_report(9))], ids=["long", "hostile", "priced"]
)
def test_dot_follows_the_grammar(report):
    first, *statements, last = report.to_dot().split("\n")
    assert (first, last) == ("digraph plan {", "}")
    assert [line for line in statements if not STATEMENT.fullmatch(line)] == []
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tplain"], input=report.to_dot().encode(), check=True, capture_output=True)


def test_dot_has_every_segment_and_edge():
    report = made_report(40)
    text = report.to_dot()
    assert len(re.findall(r"^  s\d+ \[", text, re.MULTILINE)) == len(report.segments)
    assert len(re.findall(r" -> ", text)) == len(report.segments) + 1
    assert "inputs -> s0" in text and f"s{len(report.segments) - 1} -> outputs" in text


def test_dot_edges_connect_producers_and_readers():
    edges = [line for line in made_report(4).to_dot().splitlines() if " -> " in line]
    assert edges == [
        '  inputs -> s0 [label="t0 16 B"];',
        '  s0 -> s1 [label="t1 16 B"];',
        '  s1 -> s2 [label="t2 16 B"];',
        '  s2 -> outputs [label="t3 16 B"];',
    ]


def test_model_explorer_has_a_device_per_node():
    report = made_report(6)
    data = json.loads(report.to_model_explorer())
    assert {name: entry["value"] for name, entry in data["results"].items()} == {
        node.name: node.device for node in report.nodes
    }
    assert all(re.fullmatch(r"#[0-9a-f]{6}", entry["bgColor"]) for entry in data["results"].values())


def rendered_cells(row):
    """Return a table row's cells as GitHub parses them: split at bars before code spans."""
    return [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


@pytest.mark.parametrize("name", [*HOSTILE, "``two``", "`", "a | b", "@someone", "\\|"])
def test_names_in_markdown_are_code(name):
    (cell,) = rendered_cells(table(("head",), [(code(name),)]).splitlines()[-1])
    fence = re.match("`+", cell)[0]
    inner = cell[len(fence) : -len(fence)]
    assert cell.endswith(fence) and fence not in re.findall("`+", inner)
    assert "\n" not in cell and "\u2028" not in cell


def test_markdown_is_short_and_folds_details():
    text = made_report(20_000, every=2).to_markdown()
    assert len(text) < 30_000
    assert text.count("<details>") == text.count("</details>") == 3
    assert "... and 19970 more; the JSON form has them all" in text


def test_markdown_has_costs_and_rules():
    text = priced(made_report()).to_markdown()
    for words in (
        "the CPU alone is better",
        "gap 25.0%",
        "npu: simulated",
        "1 of them without effect",
        "entries not applied",
    ):
        assert words in text, words


def test_costs_equal_up_to_rounding_are_equal():
    report = priced(made_report())
    cost = dataclasses.replace(report.cost, seconds=report.cost.all_cpu_seconds * (1 + 1e-15))
    assert report.cost.cpu_is_better and cost.seconds > cost.all_cpu_seconds and not cost.cpu_is_better
    assert "CPU alone is better" not in str(dataclasses.replace(report, cost=cost))


def test_text_has_costs_and_rules():
    lines = str(priced(made_report())).splitlines()
    text = "\n".join(lines)
    assert "cut), gap 25.0%" in " ".join(text.split())
    for words in (
        "cost       4.00 ms guessed, at least 3.20 ms for any placement (the value of the plain",
        "costs of npu: simulated, cpu: modeled",
        "the CPU alone is better: 3.00 ms guessed, 1.00 ms less",
        "everything supported                          ~4.00 ms     5.00 ms",
        "applies to nothing (ban 1 in rules.toml); no node is called so",
        "plan file  plan.json: 11 nodes placed, 1 entry not applied",
        "gone on npu: no node has this name",
        "~333.3 µs where they run",
    ):
        assert words in text, words
    assert max(map(len, lines)) <= 100


def test_markdown_of_a_measured_plan_names_cost_sources():
    text = measured(made_report()).to_markdown()
    assert "| cost | 2.10 ms measured (" in text and "| all on the CPU | 2.10 ms measured |" in text
    assert "predictions use other costs, of npu: simulated, cpu: modeled" in text


def test_text_shows_predicted_next_to_measured_time():
    lines = str(priced(made_report(4))).splitlines()
    head = next(line for line in lines if line.startswith("segment "))
    assert head.split()[-3:] == ["predicted", "last", "run"]
    assert lines[lines.index(head) + 1].split()[-4:] == ["2.00", "ms", "4.00", "ms"]


def calibrated(report):
    """Return the report with calibrated costs."""
    cost = dataclasses.replace(report.cost, sources=dict.fromkeys(report.cost.sources, "calibrated"))
    return dataclasses.replace(report, cost=cost)


def test_every_guessed_number_is_marked():
    guessed = priced(made_report(4))
    text = str(guessed)
    assert "4.00 ms guessed" in text and "3.00 ms guessed" in text and "predicted," not in text
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    assert [(row[1], row[-4]) for row in rows] == [("npu", "2.00"), ("cpu", "~1.00"), ("npu", "1.00")]
    assert "~ marks a guess: costs of cpu are not measured" in text
    assert "~1.00 ms where they run" in text and "~4.00 ms" in text.split("candidate")[1]
    for other in (guessed.to_markdown(), guessed.to_dot(), str(compare_reports(guessed, guessed))):
        assert "guessed" in other
    assert "~1.00 ms" in guessed.to_markdown()
    for known in (str(calibrated(guessed)), calibrated(guessed).to_markdown(), calibrated(guessed).to_dot()):
        assert "predicted" in known and "guess" not in known and "~" not in known


@pytest.mark.parametrize(
    ("factor", "words"),
    [(2.5, "the last run took 10.00 ms, 2.5 times the 4.00 ms predicted"), (1.9, ""), (0.6, ""),
     (0.25, "the last run took 1.00 ms, less than the 4.00 ms predicted by a factor of 4.0")],
)  # fmt: skip
def test_run_far_from_its_prediction_is_reported(factor, words):
    report = calibrated(priced(made_report(4)))
    segments = tuple(dataclasses.replace(each, seconds=factor * each.predicted_seconds) for each in report.segments)
    report = dataclasses.replace(report, segments=segments)
    for text in (str(report), report.to_markdown(), "\n".join(run_costs(report).sentences)):
        assert (words or "the last run took") in " ".join(text.split()) or not words
        assert words or "the last run took" not in text


def test_best_run_is_compared_with_the_prediction():
    report = calibrated(priced(made_report(4)))
    segments = tuple(dataclasses.replace(each, seconds=3 * each.predicted_seconds) for each in report.segments)
    report = dataclasses.replace(report, segments=segments)
    assert not any("run took" in words for words in run_costs(report, 0.007).sentences)
    assert "the best run took 9.00 ms, 2.2 times the 4.00 ms predicted" in run_costs(report, 0.009).sentences


def test_slower_cpu_is_not_called_better():
    assert "CPU alone" not in str(priced(made_report(), all_cpu=0.005))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(2, "2.00 s"), (0.0125, "12.50 ms"), (4.2e-5, "42.0 µs"), (3e-8, "30 ns"), (0, "0.0 µs"), (-0.002, "-2.00 ms")],
)
def test_durations_have_units(seconds, expected):
    assert duration(seconds) == expected


def test_ops_of_two_domains_have_separate_rows():
    plain = made_report(14)
    nodes = [dataclasses.replace(node, domain="com.acme" * (at == 7)) for at, node in enumerate(plain.nodes)]
    told = dataclasses.replace(plain, nodes=tuple(nodes))
    assert "\n| `Op0` | 1 | 1 |" in told.to_markdown() and "\n| `com.acme::Op0` | 1 | 1 |" in told.to_markdown()
    assert "\ncom.acme::Op0 " in str(told)
