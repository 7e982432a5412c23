"""How many threads numpy's BLAS computes with."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nnadapter.process.cache import remembered


def limited(threads: int) -> AbstractContextManager[Any]:
    """Compute with at most that many BLAS threads inside; 0 leaves them as they are.

    The limit holds for the whole process: BLAS libraries have one pool. Where several threads compute with different
    limits at the same time, the one set last holds.
    """
    return _blas().limit(limits=threads) if threads else nullcontext()


@remembered(1)
def _blas() -> Any:
    # Imported on use: looking for the libraries of the process takes milliseconds.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
