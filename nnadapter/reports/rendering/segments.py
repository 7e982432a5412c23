"""The table of segments, as text and Markdown have it."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.reports.facts import SegmentFacts, TensorFacts
from nnadapter.reports.units import duration, foretold, quantity, work

HEADS = ("segment", "device", "nodes", "FLOPs", "weights", "in", "out", "predicted")
"""Of all columns but the last one, which is what was measured."""


def segment_cells(segment: SegmentFacts, unknown: str, guessed: bool) -> tuple[str, ...]:
    """Return what stands under `HEADS`, and what was measured; `unknown` for a time that is not known."""
    predicted = segment.predicted_seconds
    return (
        str(segment.index),
        segment.device,
        str(len(segment.nodes)),
        work(segment.flops, segment.uncounted),
        quantity(segment.weight_bytes, "B"),
        _bytes(segment.inputs),
        _bytes(segment.outputs),
        unknown if predicted is None else foretold(predicted, guessed),
        unknown if segment.seconds is None else duration(segment.seconds),
    )


def _bytes(tensors: Sequence[TensorFacts]) -> str:
    known = [tensor.nbytes for tensor in tensors if tensor.nbytes is not None]
    return quantity(sum(known), "B") if len(known) == len(tensors) else "?"
