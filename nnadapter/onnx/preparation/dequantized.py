"""Constants behind DequantizeLinear as real numbers, for devices that take what reads them and not that op."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nnadapter import limits
from nnadapter.onnx.preparation.foldable import Folding
from nnadapter.onnx.preparation.prepare import Prepared


def with_dequantized(prepared: Prepared, positions: Collection[int]) -> Prepared:
    """Return the same with some nodes evaluated that dequantize constants, and what hangs on these alone.

    It is done once for all shapes. What would hold more than `limits.FOLDED_BYTES` together stays as it is.

    Args:
        prepared: the model.
        positions: of the nodes.
    """
    folding = Folding(prepared, prepared.constants, limits.FOLDED_BYTES, frozenset(positions))
    for index in range(len(prepared.nodes)):
        if index not in prepared.evaluated:
            folding.await_evaluation(index, prepared.values)
    folding.evaluate()
    return replace(
        prepared,
        constants={**prepared.constants, **folding.folded},
        evaluated=prepared.evaluated | folding.evaluated,
    )
