"""Reports as graphs for Graphviz and Google's Model Explorer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from nnadapter.drivers.selection import HOSTS
from nnadapter.report.facts import ReportFacts, SegmentFacts, TensorFacts
from nnadapter.report.sections import count, duration, quantity, work

HOST = "#d5d9df"
"""Gray for devices that do not accelerate."""
_PALETTE = ("#9cc7f0", "#f3c27b", "#a9d8a0", "#e3a9cf", "#c4b5ee", "#8fd6d2", "#eeb1a0", "#d8d388")
"""Distinguishable in grayscale, readable with black text."""


def colors(devices: Sequence[str]) -> dict[str, str]:
    """Return a color per device."""
    accelerators = [name for name in devices if name not in HOSTS]
    accelerator_colors = {name: _PALETTE[index % len(_PALETTE)] for index, name in enumerate(accelerators)}
    return {name: accelerator_colors.get(name, HOST) for name in devices}


Ends = tuple[int | None, int | None]
"""Source and target segment; None for the model's inputs or outputs."""


def crossings(report: ReportFacts) -> Mapping[Ends, tuple[TensorFacts, ...]]:
    """Return the tensors by producing and reading segment, in reading order. None is the model's boundary."""
    home = {tensor.name: segment.index for segment in report.segments for tensor in segment.outputs}
    tensors_by_ends: dict[Ends, list[TensorFacts]] = {}
    read: set[str] = set()
    for segment in report.segments:
        for tensor in segment.inputs:
            tensors_by_ends.setdefault((home.get(tensor.name), segment.index), []).append(tensor)
            read.add(tensor.name)
    for segment in report.segments:
        unread = [tensor for tensor in segment.outputs if tensor.name not in read]
        if unread:
            tensors_by_ends[segment.index, None] = unread
    return {ends: tuple(tensors) for ends, tensors in tensors_by_ends.items()}


_SHOWN_NAMES = 3
_LONGEST_NAME = 60
_INPUTS, _OUTPUTS = "inputs", "outputs"


def to_dot(report: ReportFacts) -> str:
    """Return a Graphviz graph of segments and tensors.

    Source: the grammar of Graphviz, https://graphviz.org/doc/info/lang.html.
    """
    return "\n".join(["digraph plan {", *(f"  {line}" for line in _lines(report)), "}"])


def _lines(report: ReportFacts) -> Iterator[str]:
    yield "rankdir=TB;"
    yield 'node [shape=box, style=filled, fontname="Helvetica"];'
    yield 'edge [fontname="Helvetica", fontsize=10];'
    fill = colors(report.devices)
    edges = crossings(report)
    for segment in report.segments:
        label = _quoted(_label(segment, segment.device in report.guesses))
        yield f"s{segment.index} [label={label}, fillcolor={_quoted(fill[segment.device])}];"
    for end, name in ((0, _INPUTS), (1, _OUTPUTS)):
        if any(ends[end] is None for ends in edges):
            yield f"{name} [label={_quoted(name)}, shape=ellipse, style=solid];"
    for (source, target), tensors in edges.items():
        start = _INPUTS if source is None else f"s{source}"
        stop = _OUTPUTS if target is None else f"s{target}"
        yield f"{start} -> {stop} [label={_quoted(_tensors(tensors))}];"


def _label(segment: SegmentFacts, guessed: bool) -> list[str]:
    lines = [
        f"{segment.index}: {segment.device}",
        f"{count(len(segment.nodes), 'node')}, {work(segment.flops, segment.unknown_flops_nodes)}",
    ]
    if segment.predicted_seconds is not None:
        lines.append(f"{duration(segment.predicted_seconds)} {'guessed' if guessed else 'predicted'}")
    if segment.seconds is not None:
        lines.append(f"{duration(segment.seconds)} measured")
    return lines


def _tensors(tensors: Sequence[TensorFacts]) -> list[str]:
    lines = [
        f"{_short(tensor.name)} {'?' if tensor.nbytes is None else quantity(tensor.nbytes, 'B')}"
        for tensor in tensors[:_SHOWN_NAMES]
    ]
    more = tensors[_SHOWN_NAMES:]
    if more:
        nbytes = sum(tensor.nbytes or 0 for tensor in more)
        lines.append(f"and {len(more)} more, {quantity(nbytes, 'B')}")
    return lines


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"


def _quoted(lines: str | Sequence[str]) -> str:
    parts = [lines] if isinstance(lines, str) else lines
    plain = ("".join(char if char.isprintable() else " " for char in part) for part in parts)
    return '"' + "\\n".join(part.replace("\\", "\\\\").replace('"', '\\"') for part in plain) + '"'


_NOWHERE = "#ffffff"
_TEXT = "#000000"


def to_model_explorer(report: ReportFacts) -> str:
    """Return JSON text that maps node names to devices. Model Explorer's ONNX adapter identifies nodes by name.

    Source: `GraphNodeData` of `model_explorer.node_data_builder`, `NodeDataProviderGraphData` of its user interface.
    """
    fill = colors(report.devices)
    results = {
        node.name: {
            "value": node.device or node.state,
            "bgColor": fill.get(node.device, _NOWHERE),
            "textColor": _TEXT,
        }
        for node in report.nodes
    }
    data = {"name": "device", "results": results, "showExpandedSummaryOnGroupNode": True}
    return json.dumps(data, indent=2)
