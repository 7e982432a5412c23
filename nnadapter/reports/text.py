"""The report as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.reports.facts import PartitionReport, SegmentFacts

_SHOWN_SEGMENTS = 20
_SHOWN_REFUSALS = 20


def to_text(report: PartitionReport) -> str:
    """Return the report as lines of text: summary, segments, refusals by reason, notes."""
    return "\n".join(line for part in _PARTS for line in part(report))


def quantity(number: float, unit: str) -> str:
    """A number with a unit and a prefix that keeps it short: `12.3 MFLOP`, `4.0 KiB`."""
    if unit == "B":
        base, prefixes = 1024.0, ("", "Ki", "Mi", "Gi", "Ti")
    else:
        base, prefixes = 1000.0, ("", "k", "M", "G", "T", "P")
    index = 0
    while abs(number) >= base and index < len(prefixes) - 1:
        number /= base
        index += 1
    return f"{number:.0f} {unit}" if index == 0 else f"{number:.1f} {prefixes[index]}{unit}"


def _summary(report: PartitionReport) -> Iterator[str]:
    states = [node.state for node in report.nodes]
    running, folded, unused = (states.count(state) for state in ("runs", "folded", "unused"))
    accelerated = sum(segment.device != "cpu" for segment in report.segments)
    shapes = ", ".join(f"{name}{list(shape)}" for name, shape in report.input_shapes.items())
    yield f"devices    {', '.join(report.devices)} (policy {report.policy})"
    yield f"inputs     {shapes or 'none'}"
    yield f"nodes      {len(states)}: {running} run, {folded} folded before the run, {unused} unused"
    yield (
        f"coverage   {report.coverage.nodes:.1%} of nodes, {report.coverage.flops:.1%} of FLOPs, "
        f"{report.coverage.bytes:.1%} of bytes off the CPU"
    )
    fewest = "the fewest possible" if report.exact else "not proved the fewest"
    yield (
        f"segments   {len(report.segments)} ({accelerated} off the CPU, {fewest}), "
        f"{report.switches} switches between devices"
    )
    if report.plans is not None:
        yield (
            f"plans      {report.plans.kept} kept, {report.plans.made} made, "
            f"{report.plans.used_again} times used again, {report.plans.dropped} dropped"
        )


def _segments(report: PartitionReport) -> Iterator[str]:
    if not report.segments:
        return
    yield ""
    yield f"{'segment':<8}{'device':<14}{'nodes':>6}{'FLOPs':>13}{'weights':>11}{'in':>11}{'out':>11}{'last run':>11}"
    for segment in report.segments[:_SHOWN_SEGMENTS]:
        yield from _segment(segment)
    if len(report.segments) > _SHOWN_SEGMENTS:
        yield f"... and {len(report.segments) - _SHOWN_SEGMENTS} more; --format json has them all"


def _segment(segment: SegmentFacts) -> Iterator[str]:
    seconds = "" if segment.seconds is None else f"{segment.seconds * 1e3:.2f} ms"
    yield (
        f"{segment.index:<8}{segment.device:<14}{len(segment.nodes):>6}{quantity(segment.flops, 'FLOP'):>13}"
        f"{quantity(segment.weight_bytes, 'B'):>11}{_bytes(segment.inputs):>11}{_bytes(segment.outputs):>11}{seconds:>11}"
    )
    if segment.facts:
        yield " " * 8 + ", ".join(_fact(name, value) for name, value in segment.facts.items())


def _fact(name: str, value: float | str) -> str:
    if name.endswith("_bytes") and not isinstance(value, str):
        return f"{name.removesuffix('_bytes').replace('_', ' ')} {quantity(value, 'B')}"
    return f"{name.replace('_', ' ')} {value}"


def _bytes(tensors: tuple[object, ...]) -> str:
    sizes = [getattr(tensor, "nbytes", None) for tensor in tensors]
    return "?" if None in sizes else quantity(sum(size for size in sizes if size is not None), "B")


def _refusals(report: PartitionReport) -> Iterator[str]:
    refusals = report.refusals()
    if not refusals:
        return
    yield ""
    yield "refused"
    for (device, op_type, reason), nodes in list(refusals.items())[:_SHOWN_REFUSALS]:
        detail = next(refusal.detail for refusal in nodes[0].refusals if refusal.device == device)
        yield f"  {device}: {op_type} x{len(nodes)}  {reason}: {detail}"
    if len(refusals) > _SHOWN_REFUSALS:
        yield f"  ... and {len(refusals) - _SHOWN_REFUSALS} more; --format json has them all"


def _notes(report: PartitionReport) -> Iterator[str]:
    if report.notes:
        yield ""
        yield "notes"
        yield from (f"  {note}" for note in report.notes)


_PARTS = (_summary, _segments, _refusals, _notes)
