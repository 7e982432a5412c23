"""Synthetic reports of any size and with any names."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

from nnadapter import PartitionReport
from nnadapter.planning import UnmatchedEntry
from nnadapter.report import (
    CandidateFacts,
    CostFacts,
    Coverage,
    NodeFacts,
    PlanFileFacts,
    RefusalFacts,
    RuleFacts,
    SegmentFacts,
    TensorFacts,
    WeightFacts,
)

HOSTILE = (
    "</script><script>document.title='broken'</script>",
    "<img src=x onerror=\"document.title='broken'\">",
    "<!--<script>",
    "&lt;b&gt;\"'`|\\ {{data}} ${1}",
    "line\nbreak\u2028and\u202eback",
    "javascript:alert(1)",
)


def made_report(nodes=12, names=None, every=3):
    """Return the report of a chain in which every third node runs on the CPU; a segment is a run of one device."""
    names = list(names or (f"node/{index}" for index in range(nodes)))
    devices = ["cpu" if index % every == every - 1 else "npu" for index in range(len(names))]
    segments = [0]
    for before, after in pairwise(devices):
        segments.append(segments[-1] + (before != after))
    facts = tuple(
        NodeFacts(
            name=name, op_type=f"Op{index % 7}", domain="", state="runs", device=device, segment=segment,
            flops=1000 * (index + 1), nbytes=64,
            refusals=(RefusalFacts(device="npu", reason="dtype", detail=f"{name} is int64"),)
            if device == "cpu" else (),
        )
        for index, (name, device, segment) in enumerate(zip(names, devices, segments, strict=True))
    )  # fmt: skip
    return PartitionReport(
        devices=("npu", "cpu"),
        policy="priority",
        input_shapes={"x": (1, 4)},
        coverage=Coverage(nodes=devices.count("npu") / len(devices), flops=0.5, bytes=0.5),
        segments=tuple(_segments(facts)),
        nodes=facts,
        switches=segments[-1],
        exact=True,
        weights=WeightFacts(devices={"npu": 2048, "cpu": 0}, total=2048),
    )


def measured(report):
    """Return the priced report with a measured plan, everything on the CPU."""
    found = priced(report)
    cost = dataclasses.replace(
        found.cost, seconds=0.0021, predicted_seconds=0.003, all_cpu_seconds=0.0021, all_cpu_predicted_seconds=0.003,
        bound_seconds=None, gap=None, sources=dict.fromkeys(report.devices, "measured"),
        prediction_sources=found.cost.sources,
        candidates=(
            CandidateFacts(name="all on cpu", seconds=0.003, measured_seconds=0.0021),
            CandidateFacts(name="everything supported", seconds=0.004, measured_seconds=0.005),
        ),
    )  # fmt: skip
    segments = tuple(dataclasses.replace(segment, device="cpu") for segment in found.segments)
    return dataclasses.replace(found, cost=cost, segments=segments, policy="measured")


def _segments(nodes):
    members: dict[int, list[NodeFacts]] = {}
    for node in nodes:
        members.setdefault(node.segment, []).append(node)
    for index, found in members.items():
        before, after = (
            TensorFacts(name=f"t{at}", dtype="float32", shape=(1, 4), nbytes=16) for at in (index, index + 1)
        )
        yield SegmentFacts(
            index=index, device=found[0].device, nodes=tuple(node.name for node in found), inputs=(before,),
            outputs=(after,), flops=sum(node.flops for node in found), weight_bytes=0, facts={"arena_bytes": 4096},
        )  # fmt: skip


def priced(report, seconds=0.004, all_cpu=0.003):
    """Return the report with costs, rules and a plan file."""
    cost = CostFacts(
        seconds=seconds, bound_seconds=seconds / 1.25, bound_kind="the value of the plain cut", gap=0.25,
        sources={"npu": "simulated", "cpu": "modeled"},
        candidates=(
            CandidateFacts(name="all on the CPU", seconds=all_cpu),
            CandidateFacts(name="everything supported", seconds=seconds, measured_seconds=0.005),
        ),
        all_cpu_seconds=all_cpu, note="prices of the CPU are a roofline",
    )  # fmt: skip
    share = seconds / len(report.nodes)
    return dataclasses.replace(
        report,
        cost=cost,
        nodes=tuple(dataclasses.replace(node, predicted_seconds=share) for node in report.nodes),
        segments=tuple(
            dataclasses.replace(
                segment, predicted_seconds=share * len(segment.nodes), transfer_seconds=1e-5, launch_seconds=2e-5,
                benefit_seconds=-1e-4, seconds=2 * share * len(segment.nodes), compile_seconds=0.5,
            )
            for segment in report.segments
        ),
        rules=(
            RuleFacts(text='pin device="cpu" op_type="Op2"', source="pin 1 in rules.toml", nodes=4),
            RuleFacts(text='ban device="npu" name="gone/*"', source="ban 1 in rules.toml", note="no node is called so"),
        ),
        plan_file=PlanFileFacts(
            path="plan.json", matched_nodes=11,
            unmatched_entries=(UnmatchedEntry(name="gone", device="npu", reason="no node has this name"),)
        ),
    )  # fmt: skip
