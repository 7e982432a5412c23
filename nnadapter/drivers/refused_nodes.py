"""Search for the nodes of a model that an engine refuses to load.

Used after a refusal of the model, and for engines that judge only entire models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nnadapter.onnx.parts import Parts
from partition.graph import Unsupported

if TYPE_CHECKING:
    import onnx


Attempt = Callable[["onnx.ModelProto"], Unsupported | None]
"""Function that loads a model; returns None on success, otherwise a refusal."""


def find_culprits(model: onnx.ModelProto, attempt: Attempt) -> dict[int, Unsupported]:
    """Return the positions and refusals of nodes that `attempt` refuses individually.

    1. Nodes with equal op, attributes and types form a case; one of them represents it.
    2. Cases are tried together and halved on failure: about 2 log n tries for n cases with one culprit.
    3. Nodes that violate their schema are omitted, because another device would not help.
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
    """Return the refusals of nodes at `positions` (ascending), found by bisection."""
    refusal = attempt(parts.part(positions)) if positions else None
    if refusal is None:
        return {}
    if len(positions) == 1:
        return {positions[0]: refusal}
    middle = len(positions) // 2
    return {**find_refused(positions[:middle], parts, attempt), **find_refused(positions[middle:], parts, attempt)}
