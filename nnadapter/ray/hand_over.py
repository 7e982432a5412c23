"""How many rows Ray hands to an actor at once.

A task of Ray's costs some 30 ms of processors, whatever is in it: a third of them its driver's, half of them the
actor's. So small rows come by the thousand, but in so many tasks that all actors have some until the end, and no more
of them than fit into memory with what the model makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from nnadapter.ir.operand import array_type_of
from nnadapter.onnx.signature import Signature
from partition.graph import Value

_USUAL_ROWS, _MOST_ROWS = 512, 8192
"""Where it is not known how many rows there are or how large they become, and where both are."""
_USUAL_BYTES, _MOST_BYTES = 16 << 20, 32 << 20
"""The same of what goes in or comes out."""
_TASKS_PER_ACTOR = 16
_USUAL_SIZE = 256
"""Of a dimension that the model leaves open."""


def rows_at_once(
    signature: Signature, inputs: Iterable[str], outputs: Iterable[str], *, batch_size: int, rows: int | None,
    actors: int,
) -> int:  # fmt: skip
    """Return the rows of a hand-over: runs of `batch_size`, at least one.

    Args:
        signature: of the model.
        inputs: that are fed.
        outputs: that are fetched.
        batch_size: rows of a run.
        rows: of the dataset; None where that is not known.
        actors: that share them.
    """
    outputs_by_name = {value.name: value for value in signature.outputs}
    fed = [signature.by_name[name] for name in inputs]
    fetched = [outputs_by_name[name] for name in outputs]
    size = max(_row_bytes(fed), _row_bytes(fetched), 1)
    most = min(_USUAL_ROWS, _USUAL_BYTES // size)
    if rows is not None and all(value.shape is not None for value in (*fed, *fetched)):
        most = max(most, min(_MOST_ROWS, _MOST_BYTES // size, rows // (actors * _TASKS_PER_ACTOR)))
    return batch_size * max(1, most // batch_size)


def known_rows(dataset: Any) -> int | None:
    """The rows of a dataset, where Ray knows without computing any."""
    tell = getattr(dataset, "_meta_count", None)  # its public `count` computes where they are not known
    rows = tell() if tell is not None else None
    return rows if isinstance(rows, int) else None


def _row_bytes(values: Sequence[Value]) -> int:
    return sum(
        prod(size if isinstance(size, int) else _USUAL_SIZE for size in (value.shape or ())[1:])
        * array_type_of(value.dtype or "float32").itemsize
        for value in values
    )
