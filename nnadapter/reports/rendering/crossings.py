"""Which tensors pass from which segment to which."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.reports.facts import ReportFacts, TensorFacts

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
