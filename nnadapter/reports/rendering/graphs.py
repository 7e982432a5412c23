"""Graph pictures of a report: segments for Graphviz, and node data for Google's Model Explorer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from nnadapter.drivers.selection import HOSTS
from nnadapter.reports.facts import ReportFacts, SegmentFacts, TensorFacts
from nnadapter.reports.formatting import count, duration, quantity, work

HOST = "#d5d9df"
"""Devices that accelerate nothing are gray."""
_PALETTE = ("#9cc7f0", "#f3c27b", "#a9d8a0", "#e3a9cf", "#c4b5ee", "#8fd6d2", "#eeb1a0", "#d8d388")
"""Told apart in grayscale as far as eight can be; black text on each has a contrast above 7."""


def colors(devices: Sequence[str]) -> dict[str, str]:
    """Return `#rrggbb` per device, the same for the same list; the ninth accelerator has the first color again."""
    others = [name for name in devices if name not in HOSTS]
    accelerator_colors = {name: _PALETTE[index % len(_PALETTE)] for index, name in enumerate(others)}
    return {name: accelerator_colors.get(name, HOST) for name in devices}


Ends = tuple[int | None, int | None]
"""From and to, as segment indices; None is the model's own input or output."""


def crossings(report: ReportFacts) -> Mapping[Ends, tuple[TensorFacts, ...]]:
    """Return the tensors between every two segments that exchange any, in the order in which they are read.

    What a segment makes and no segment reads goes to the model's outputs.
    """
    home = {tensor.name: segment.index for segment in report.segments for tensor in segment.outputs}
    tensors_by_ends: dict[Ends, list[TensorFacts]] = {}
    read: set[str] = set()
    for segment in report.segments:
        for tensor in segment.inputs:
            tensors_by_ends.setdefault((home.get(tensor.name), segment.index), []).append(tensor)
            read.add(tensor.name)
    for segment in report.segments:
        left = [tensor for tensor in segment.outputs if tensor.name not in read]
        if left:
            tensors_by_ends[segment.index, None] = left
    return {ends: tuple(tensors) for ends, tensors in tensors_by_ends.items()}


_SHOWN_NAMES = 3
_LONGEST_NAME = 60
_INPUTS, _OUTPUTS = "inputs", "outputs"


def to_dot(report: ReportFacts) -> str:
    """Return a directed graph: a box per segment, an edge per two segments that exchange tensors.

    Boxes say device, nodes, FLOPs and times; edges name tensors and bytes. Names from the model stand in quoted
    strings.

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
        known = sum(tensor.nbytes or 0 for tensor in more)
        lines.append(f"and {len(more)} more, {quantity(known, 'B')}")
    return lines


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"


def _quoted(lines: str | Sequence[str]) -> str:
    """A quoted string, in which a backslash would begin an escape."""
    parts = [lines] if isinstance(lines, str) else lines
    plain = ("".join(char if char.isprintable() else " " for char in part) for part in parts)
    return '"' + "\\n".join(part.replace("\\", "\\\\").replace('"', '\\"') for part in plain) + '"'


_NOWHERE = "#ffffff"
_TEXT = "#000000"


def to_model_explorer(report: ReportFacts) -> str:
    """Return JSON text: per node name the device, or `folded` or `unused`, with a color.

    It is the data of one graph, the model's own. Nodes are found by their names, which are the node ids of Model
    Explorer's ONNX adapter; a node that the model does not name is not found.

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
