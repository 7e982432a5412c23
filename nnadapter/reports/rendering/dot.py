"""The segments and what passes between them, in Graphviz's language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nnadapter.reports.facts import ReportFacts, SegmentFacts, TensorFacts
from nnadapter.reports.rendering.colors import colors
from nnadapter.reports.rendering.crossings import crossings
from nnadapter.reports.units import count, duration, quantity, work

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
        f"{count(len(segment.nodes), 'node')}, {work(segment.flops, segment.uncounted)}",
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
