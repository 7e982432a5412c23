"""Cutting work into blocks that stay in cache between the passes over them."""

from __future__ import annotations

from collections.abc import Iterator

BLOCK_ELEMENTS = 32768
"""Elements of one block of element-wise work: 128 KiB of float32, so that a few of them fit a level-2 cache."""
GEMM_BLOCK_BYTES = 1 << 20
"""Bytes of the larger of a matrix block's operand and result, when a product is cut along its rows."""
GEMM_BLOCK_ROWS = 192
"""Fewer rows than this make a matrix product slow, because its other factor is packed anew for every block."""


def blocks(total: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover `range(total)`."""
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


def even_blocks(total: int, step: int) -> Iterator[slice]:
    """Slices of about `step`, up to half as large again, that cover `range(total)` without a small rest."""
    count = max(1, round(total / step))
    return blocks(total, -(-total // count))


def gemm_rows(row_bytes: int) -> int:
    """How many rows of `row_bytes` a block of a matrix product takes."""
    return max(GEMM_BLOCK_ROWS, GEMM_BLOCK_BYTES // max(row_bytes, 1))
