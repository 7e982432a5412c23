"""The facts of a report as the HTML page reads them: columns instead of objects, every long text once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from nnadapter.drivers.selection import HOSTS
from nnadapter.onnx.domains import op_name
from nnadapter.reports.cost_facts import CostFacts, PlanFileFacts
from nnadapter.reports.difference_facts import DifferenceFacts
from nnadapter.reports.facts import NodeFacts, ReportFacts, SegmentFacts, TensorFacts
from nnadapter.reports.plain import plain
from nnadapter.reports.rendering.border_text import boundary_sentences
from nnadapter.reports.rendering.cost_text import guess_words, prediction_words
from nnadapter.reports.rendering.incident_lines import incident_lines
from nnadapter.reports.rendering.refused import RefusedGroup, refused_groups
from nnadapter.reports.rendering.verdict import verdict

_STATES = ("folded", "unused")


class _Interned:
    """Texts or rows in order of first use, and the position of each."""

    def __init__(self) -> None:
        self._positions: dict[Any, int] = {}

    def position(self, item: Any) -> int:
        return self._positions.setdefault(item, len(self._positions))

    def items(self) -> list[Any]:
        return list(self._positions)


def page_data(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> dict[str, Any]:
    """Return what the page shows, as plain data.

    `nodes` are columns of equal length. `place` counts in `places`: the devices, then `folded` and `unused`; `op`,
    `runs` and `refused` count in `ops`, `texts` and `refusals`, and tensors in `tensors`.
    """
    return {
        **_plan(report),
        "title": title,
        "verdict": plain(verdict(report)),
        "made": _made(report),
        "policy": report.policy,
        "inputs": [[name, list(shape)] for name, shape in report.input_shapes.items()],
        "choice": report.choice_text,
        "coverage": plain(report.coverage),
        "switches": report.switches,
        "fewest": report.fewest,
        "notes": [*report.notes, *incident_lines(report)],
        "borders": boundary_sentences(report),
        "weights": plain(report.weights),
        "cost": None if report.cost is None else _cost(report.cost),
        "rules": plain(report.rules),
        "plan_file": None if report.plan_file is None else _plan_file(report.plan_file),
        **_nodes(report),
        "groups": [_group(group) for group in refused_groups(report)],
        "difference": None if difference is None else difference.to_dict(),
        "before": None if difference is None else _plan(difference.old),
    }


def _cost(cost: CostFacts) -> dict[str, Any]:
    """The facts, with what the page says in the words of the text report."""
    resting = prediction_words(cost) if cost.is_measured and cost.prediction_sources else ""
    words = {"word": cost.word, "resting": resting, "guess": guess_words(cost)}
    return {**plain(cost), **words}


def _group(group: RefusedGroup) -> dict[str, Any]:
    return {**plain(group), "between": group.between, "switching": group.switching}


def _made(report: ReportFacts) -> dict[str, Any]:
    """With what, where and when; options of devices as a person writes them."""
    options = {
        name: ", ".join(f"{option}={value or 'nothing'}" for option, value in options.items())
        for name, options in report.device_options.items()
    }
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {
        "options": options, "versions": dict(report.versions), "machine": report.machine, "date": now,
        "fallback": report.fallback,
    }  # fmt: skip


def _plan_file(plan: PlanFileFacts) -> dict[str, Any]:
    return {"path": plan.path, "bound": plan.bound, "lost": len(plan.lost), "groups": plain(plan.lost_groups())}


def _plan(report: ReportFacts) -> dict[str, Any]:
    """Devices, segments and what passes between them."""
    tensors = _Interned()
    return {
        "devices": list(report.devices),
        "hosts": [name in HOSTS for name in report.devices],
        "guessed": [name in report.guesses for name in report.devices],
        "segments": [_segment(segment, report.devices.index(segment.device), tensors) for segment in report.segments],
        "tensors": tensors.items(),
    }


def _segment(segment: SegmentFacts, device: int, tensors: _Interned) -> dict[str, Any]:
    def crossing(tensor_facts: Iterable[TensorFacts]) -> list[int]:
        return [
            tensors.position((item.name, item.dtype or "", _shape(item.shape), item.nbytes)) for item in tensor_facts
        ]

    told = {
        "seconds": segment.seconds,
        "predicted": segment.predicted_seconds,
        "transfer": segment.transfer_seconds,
        "launch": segment.launch_seconds,
        "benefit": segment.benefit_seconds,
        "compile": segment.compile_seconds,
        "bound": segment.bound_to,
        "facts": dict(segment.facts),
        "failures": list(segment.failures),
    }
    return {
        "device": device,
        "count": len(segment.nodes),
        "flops": segment.flops if segment.flops or not segment.uncounted else None,
        "weights": segment.weight_bytes,
        "in": crossing(segment.inputs),
        "out": crossing(segment.outputs),
        **{key: value for key, value in told.items() if value not in (None, {}, [])},
    }


def _shape(shape: tuple[int | str | None, ...] | None) -> str:
    return "unknown" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _nodes(report: ReportFacts) -> dict[str, Any]:
    places = {name: index for index, name in enumerate((*report.devices, *_STATES))}
    ops, texts, refusals = _Interned(), _Interned(), _Interned()
    nodes = report.nodes
    columns = {
        "name": [node.name for node in nodes],
        "op": [ops.position(_op(node)) for node in nodes],
        "place": [places[node.device or node.state] for node in nodes],
        "segment": [-1 if node.segment is None else node.segment for node in nodes],
        "flops": [node.flops for node in nodes],
        "bytes": [node.nbytes for node in nodes],
        "seconds": [node.predicted_seconds for node in nodes],
        "runs": [texts.position(node.runs_as) for node in nodes],
        "refused": [
            [refusals.position((item.device, item.reason, item.detail)) for item in node.refusals] for node in nodes
        ],
    }
    return {
        "places": list(places),
        "nodes": columns,
        "bodies": {index: _bodies(node) for index, node in enumerate(nodes) if node.bodies},
        "ops": ops.items(),
        "texts": texts.items(),
        "refusals": refusals.items(),
    }


def _op(node: NodeFacts) -> str:
    return op_name(node.domain, node.op_type)


def _bodies(node: NodeFacts) -> list[str]:
    return [
        f"{body.name}: {', '.join(f'{op_type} x{number}' for op_type, number in body.op_types.items())}"
        for body in node.bodies
    ]
