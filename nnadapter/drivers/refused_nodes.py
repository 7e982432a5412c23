"""Search for the nodes of a model that a loader refuses.

Asked only after a refusal, so that models that load lose no time; or beforehand, by drivers whose engine only answers
for models as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nnadapter.onnx.parts import Parts
from partition.graph import Unsupported

if TYPE_CHECKING:
    import onnx


Attempt = Callable[["onnx.ModelProto"], Unsupported | None]
"""Loads a model, and says why not if it cannot."""


def find_culprits(model: onnx.ModelProto, attempt: Attempt) -> dict[int, Unsupported]:
    """Return the nodes (positions) that `attempt` refuses each by itself, and why.

    1. Nodes of one op with the same attributes and types are one case: one of them is tried for all.
    2. Cases are tried together, in halves where they fail, so that n of them with one culprit take about 2 log n tries.
    3. A node that contradicts its schema is no culprit: the model is wrong then, and no other device would mend it.
    """
    parts = Parts(model)
    first = {positions[0]: positions for positions in parts.cases().values()}
    refused = find_refused(list(first), parts, attempt)
    return {
        position: refusal
        for representative, refusal in refused.items()
        for position in first[representative]
        if parts.is_valid(representative)
    }


def find_refused(positions: Sequence[int], parts: Parts, attempt: Attempt) -> dict[int, Unsupported]:
    """Return which of the nodes at `positions` (ascending) `attempt` refuses each by itself, and why.

    All are tried together, in halves where they fail.
    """
    refusal = attempt(parts.part(positions)) if positions else None
    if refusal is None:
        return {}
    if len(positions) == 1:
        return {positions[0]: refusal}
    middle = len(positions) // 2
    return {**find_refused(positions[:middle], parts, attempt), **find_refused(positions[middle:], parts, attempt)}
