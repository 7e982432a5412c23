"""Reports as self-contained HTML pages."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

from nnadapter.drivers.selection import HOSTS
from nnadapter.onnx.domains import op_name
from nnadapter.process.resources import memoize
from nnadapter.report import sections
from nnadapter.report.difference import DifferenceFacts
from nnadapter.report.facts import CostFacts, NodeFacts, PlanFileFacts, ReportFacts, SegmentFacts, TensorFacts, plain

_STATES = ("folded", "unused")


class _Positions(dict[Any, int]):
    def __missing__(self, item: Any) -> int:
        self[item] = len(self)
        return self[item]


def page_data(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> dict[str, Any]:
    """Return the page's data. Repeated texts of nodes are indices into tables."""
    return {
        **_plan(report),
        "title": title,
        "verdict": plain(sections.verdict(report)),
        "made": _circumstances(report),
        "policy": report.policy,
        "inputs": [[name, list(shape)] for name, shape in report.input_shapes.items()],
        "choice": report.branch_decisions_text,
        "coverage": plain(report.coverage),
        "switches": report.switches,
        "fewest": report.fewest,
        "notes": [*report.precision_remarks, *report.notes, *sections.incident_lines(report)],
        "borders": sections.boundary_sentences(report),
        "weights": plain(report.weights),
        "cost": None if report.cost is None else _cost(report.cost),
        "rules": plain(report.rules),
        "plan_file": None if report.plan_file is None else _plan_file(report.plan_file),
        **_nodes(report),
        "groups": [_group(group) for group in sections.refused_groups(report)],
        "difference": None if difference is None else difference.to_dict(),
        "before": None if difference is None else _plan(difference.old_report),
    }


def _cost(cost: CostFacts) -> dict[str, Any]:
    return {
        **plain(cost),
        "word": cost.word,
        "resting": sections.prediction_words(cost),
        "guess": sections.guess_words(cost),
    }


def _group(group: sections.RefusedGroup) -> dict[str, Any]:
    return {**plain(group), "between": group.between, "switching": group.switching}


def _circumstances(report: ReportFacts) -> dict[str, Any]:
    options = {
        name: ", ".join(f"{option}={value or 'nothing'}" for option, value in options.items())
        for name, options in report.device_options.items()
    }
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {
        "options": options, "versions": dict(report.versions), "machine": report.machine, "date": date,
        "fallback": report.fallback,
    }  # fmt: skip


def _plan_file(plan: PlanFileFacts) -> dict[str, Any]:
    return {
        "path": plan.path,
        "bound": plan.matched_nodes,
        "lost": len(plan.unmatched_entries),
        "groups": plain(sections.lost_groups(plan)),
    }


def _plan(report: ReportFacts) -> dict[str, Any]:
    tensors = _Positions()
    return {
        "devices": list(report.devices),
        "hosts": [name in HOSTS for name in report.devices],
        "guessed": [name in report.guesses for name in report.devices],
        "segments": [_segment(segment, report.devices.index(segment.device), tensors) for segment in report.segments],
        "tensors": list(tensors),
    }


def _segment(segment: SegmentFacts, device: int, tensors: _Positions) -> dict[str, Any]:
    def crossing(tensor_facts: Iterable[TensorFacts]) -> list[int]:
        return [tensors[item.name, item.dtype or "", _shape(item.shape), item.nbytes] for item in tensor_facts]

    optional_values = {
        "seconds": segment.seconds,
        "predicted": segment.predicted_seconds,
        "transfer": segment.transfer_seconds,
        "launch": segment.launch_seconds,
        "benefit": segment.benefit_seconds,
        "compile": segment.compile_seconds,
        "bound": segment.program_of,
        "facts": dict(segment.facts),
        "failures": list(segment.failures),
    }
    return {
        "device": device,
        "count": len(segment.nodes),
        "flops": segment.flops if segment.flops or not segment.unknown_flops_nodes else None,
        "weights": segment.weight_bytes,
        "in": crossing(segment.inputs),
        "out": crossing(segment.outputs),
        **{key: value for key, value in optional_values.items() if value not in (None, {}, [])},
    }


def _shape(shape: tuple[int | str | None, ...] | None) -> str:
    return "unknown" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _nodes(report: ReportFacts) -> dict[str, Any]:
    places = {name: index for index, name in enumerate((*report.devices, *_STATES))}
    ops, texts, refusals = _Positions(), _Positions(), _Positions()
    nodes = report.nodes
    columns = {
        "name": [node.name for node in nodes],
        "op": [ops[op_name(node.domain, node.op_type)] for node in nodes],
        "place": [places[node.device or node.state] for node in nodes],
        "segment": [-1 if node.segment is None else node.segment for node in nodes],
        "flops": [node.flops for node in nodes],
        "bytes": [node.nbytes for node in nodes],
        "seconds": [node.predicted_seconds for node in nodes],
        "runs": [texts[node.runs_as] for node in nodes],
        "refused": [[refusals[item.device, item.reason, item.detail] for item in node.refusals] for node in nodes],
    }
    return {
        "places": list(places),
        "nodes": columns,
        "bodies": {index: _bodies(node) for index, node in enumerate(nodes) if node.bodies},
        "ops": list(ops),
        "texts": list(texts),
        "refusals": list(refusals),
    }


def _bodies(node: NodeFacts) -> list[str]:
    return [
        f"{body.name}: {', '.join(f'{op_type} x{number}' for op_type, number in body.op_types.items())}"
        for body in node.bodies
    ]


_SCRIPTS = (
    "dom.js", "data.js", "table.js", "scale.js", "drawing.js", "lanes.js", "details.js", "overview.js", "breakdown.js",
    "nodes.js", "comparison.js", "start.js",
)  # fmt: skip


def to_html(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    """Return the page, with an optional comparison.

    Its content security policy allows only its own style and script. Texts from the model are JSON with `<` escaped.
    """
    style, script = page_style(), _script()
    allowed = f"default-src 'none'; style-src {policy_hash(style)}; script-src {policy_hash(script)}"
    parts = {
        "title": html.escape(title or "model"),
        "policy": html.escape(f"{allowed}; base-uri 'none'; form-action 'none'"),
        "style": style,
        "script": script,
        "data": _data(report, title, difference),
    }
    return filled(_file("page.html"), parts)


def filled(template: str, parts: Mapping[str, str]) -> str:
    """Replace each `{{name}}` in `template` by `parts[name]`, without expanding parts."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _data(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    text = json.dumps(
        plain(page_data(report, title, difference)), ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )
    # prevents end tags and comments; JSON has these characters only in strings
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def policy_hash(text: str) -> str:
    """Return the source expression of a style or script for a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@memoize(1)
def page_style() -> str:
    """Return the style sheet of all pages."""
    return _file("page.css")


@memoize(1)
def _script() -> str:
    return "(() => {\n" + "\n".join(_file(name) for name in _SCRIPTS) + "\n})();"


def _file(name: str) -> str:
    return resources.files("nnadapter.report").joinpath("page", name).read_text(encoding="utf-8")


_DEVICES = 8
_COLORS = "".join(f".at-{number}{{background:var(--device-{number})}}" for number in range(_DEVICES))
_BARS = (
    ".at-host{background:var(--host)}.rows{display:grid;grid-template-columns:max-content 1fr max-content;gap:6px 14px}"
)
_METER = "meter{width:100%;height:14px}"
_TOP = "ul.detail{padding-left:20px;margin:8px 0 0}.subtitle{margin-top:4px}"


def static_page(kind: str, title: str, subtitle: str, body: str) -> str:
    """Return a page around the markup `body`, without scripts or requests."""
    style = page_style() + _COLORS + _BARS + _METER + _TOP
    policy = f"default-src 'none'; style-src {policy_hash(style)}; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)} · {escape(kind.lower())}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header class="top"><div><p class="eyebrow">{escape(kind)}</p><h1>{escape(title)}</h1>'
        f'<p class="muted subtitle">{escape(subtitle)}</p></div></header>\n<main>{body}</main>\n'
        '<footer class="muted">This page is self-contained and makes no network requests.</footer>\n'
        "</body>\n</html>\n"
    )


def tiles(figures: Sequence[tuple[str, str, str]]) -> str:
    """Return HTML tiles with name, figure and explanation."""
    cells = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(figure)}'
        f'<span class="small">{escape(small)}</span></dd></div>'
        for name, figure, small in figures
    )
    return f'<dl class="tiles">{cells}</dl>'


def table(head: Sequence[tuple[str, bool]], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table; `head` pairs each column's name with True for numbers."""
    if not rows:
        return ""
    marks = [' class="number"' if is_number else "" for _, is_number in head]
    names = "".join(f"<th{mark}>{escape(name)}</th>" for mark, (name, _) in zip(marks, head, strict=True))
    lines = "".join(
        "<tr>" + "".join(f"<td{mark}>{escape(str(cell))}</td>" for mark, cell in zip(marks, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wrapped"><table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table></div>'


def bars(parts: Mapping[str, int], total: int) -> str:
    """Return bars with numbers, one per device."""
    cells = "".join(
        f'<span class="chip"><i class="{_color(place, name)}"></i>{escape(name)}</span>'
        f'<meter min="0" max="{max(total, 1)}" value="{number}"></meter>'
        f'<span class="number">{number} ({number / max(total, 1):.1%})</span>'
        for place, (name, number) in enumerate(parts.items())
    )
    return f'<div class="rows">{cells}</div>' if cells else ""


def _color(place: int, name: str) -> str:
    return "at-host" if name in HOSTS else f"at-{place % _DEVICES}"
