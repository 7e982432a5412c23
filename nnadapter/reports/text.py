"""The report as text, for a terminal: what an engineer asks first comes first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nnadapter.drivers.interface import NO_OPERATION
from nnadapter.drivers.selection import HOSTS
from nnadapter.reports.op_types import op_type_lines
from nnadapter.reports.units import count, quantity

if TYPE_CHECKING:
    from nnadapter.reports.facts import NodeFacts, PartitionReport, SegmentFacts, TensorFacts

_WIDTH = 100
_SHOWN_SEGMENTS = 20
_SHOWN_REFUSALS = 20
_KEPT = "\u00a0"
"""A space at which no line is broken."""


def to_text(report: PartitionReport) -> str:
    """Return the report as lines of text.

    1. Summary: devices, inputs, how the nodes end, coverage, segments.
    2. Segments, with what they compute, hold and exchange.
    3. What was refused, by device, op type and reason, each with an example.
    4. Op types, with where their nodes run.
    5. Notes: what did not go as promised.
    """
    return "\n".join(line for part in _PARTS for line in part(report))


def _summary(report: PartitionReport) -> Iterator[str]:
    states = [node.state for node in report.nodes]
    running, folded, unused = (states.count(state) for state in ("runs", "folded", "unused"))
    shapes = ", ".join(f"{name}{list(shape)}" for name, shape in report.input_shapes.items())
    yield f"devices    {', '.join(report.devices)} (policy {report.policy})"
    yield from _wrapped(shapes or "none", "inputs     ")
    yield f"nodes      {len(states)}: {running} run, {folded} folded before the run, {unused} unused"
    yield from _groups(report)
    unknown = sum(node.state == "runs" and node.flops is None for node in report.nodes)
    known = " known" if unknown else ""
    yield (
        f"coverage   {report.coverage.nodes:.1%} of nodes, {report.coverage.flops:.1%} of{known} FLOPs, "
        f"{report.coverage.bytes:.1%} of bytes off the CPU"
    )
    if unknown:
        yield f"           FLOPs of {count(unknown, 'node')} are not known: their op has no formula"
    accelerated = sum(segment.device not in HOSTS for segment in report.segments)
    fewest = "the fewest possible" if report.exact else "not proved the fewest"
    yield (
        f"segments   {len(report.segments)} ({accelerated} off the CPU, {fewest}), "
        f"{count(report.switches, 'switch', 'switches')} between devices"
    )
    if report.plans is not None:
        held = quantity(report.plans.memory_bytes, "B")
        yield (
            f"plans      {report.plans.kept} kept ({held}), {report.plans.made} made, "
            f"{report.plans.used_again} times used again, {report.plans.dropped} dropped"
        )


def _groups(report: PartitionReport) -> Iterator[str]:
    """Per device that says what nodes run as: how many groups they are fused into, and the largest."""
    for device in report.devices:
        said = [node for node in report.nodes if node.device == device and node.runs_as]
        groups: dict[tuple[int | None, str], list[NodeFacts]] = {}
        for node in said:
            if node.runs_as != NO_OPERATION:
                groups.setdefault((node.segment, node.runs_as), []).append(node)
        if groups:
            (_, largest), members = max(groups.items(), key=lambda item: len(item[1]))
            fused = f"fused into {len(groups)}, most of them ({len(members)}) into {largest}"
            text = fused if len(members) > 1 else "none fused"
            yield from _wrapped(f"{device}: {count(len(said), 'node')}, {text}", " " * 11)


def _segments(report: PartitionReport) -> Iterator[str]:
    if not report.segments:
        return
    yield ""
    yield f"{'segment':<8}{'device':<14}{'nodes':>6}{'FLOPs':>13}{'weights':>11}{'in':>11}{'out':>11}{'last run':>11}"
    for segment in report.segments[:_SHOWN_SEGMENTS]:
        yield from _segment(segment)
    if len(report.segments) > _SHOWN_SEGMENTS:
        yield f"... and {len(report.segments) - _SHOWN_SEGMENTS} more; the JSON form has them all"


def _segment(segment: SegmentFacts) -> Iterator[str]:
    seconds = "-" if segment.seconds is None else f"{segment.seconds * 1e3:.2f} ms"
    sizes = (quantity(segment.weight_bytes, "B"), _bytes(segment.inputs), _bytes(segment.outputs), seconds)
    yield (
        f"{segment.index:<8}{segment.device:<14}{len(segment.nodes):>6}{quantity(segment.flops, 'FLOP'):>13}"
        + "".join(f"{size:>11}" for size in sizes)
    )
    if segment.facts:
        facts = ", ".join(_fact(name, value).replace(" ", _KEPT) for name, value in segment.facts.items())
        yield from (line.replace(_KEPT, " ") for line in _wrapped(facts, " " * 8))


def _fact(name: str, value: float | str) -> str:
    words = name.replace("_", " ")
    if name.endswith("_bytes") and not isinstance(value, str):
        return f"{words.removesuffix(' bytes')} {quantity(value, 'B')}"
    if name.endswith("_percent") and not isinstance(value, str):
        return f"{words.removesuffix(' percent')} {value:.1f}%"
    return f"{words} {value}"


def _bytes(tensors: tuple[TensorFacts, ...]) -> str:
    known = [tensor.nbytes for tensor in tensors if tensor.nbytes is not None]
    return quantity(sum(known), "B") if len(known) == len(tensors) else "?"


def _refusals(report: PartitionReport) -> Iterator[str]:
    refusals = report.refusals()
    if not refusals:
        return
    yield ""
    yield "refused"
    for (device, op_type, reason), nodes in list(refusals.items())[:_SHOWN_REFUSALS]:
        detail = next(
            refusal.detail for refusal in nodes[0].refusals if (refusal.device, refusal.reason) == (device, reason)
        )
        yield f"  {device}: {op_type} x{len(nodes)}  {reason}"
        yield from _wrapped(f"{'as ' if len(nodes) > 1 else ''}{nodes[0].name}: {detail}", " " * 6)
    if len(refusals) > _SHOWN_REFUSALS:
        yield f"  ... and {len(refusals) - _SHOWN_REFUSALS} more; the JSON form has them all"


def _op_types(report: PartitionReport) -> Iterator[str]:
    yield ""
    yield from op_type_lines(report)


def _notes(report: PartitionReport) -> Iterator[str]:
    if report.notes:
        yield ""
        yield "notes"
        for note in report.notes:
            yield from _wrapped(note, "  ")


def _wrapped(text: str, head: str) -> list[str]:
    """`text` behind `head`, on as many lines as it takes; names are never cut."""
    indent = " " * len(head)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


_PARTS = (_summary, _segments, _refusals, _op_types, _notes)
