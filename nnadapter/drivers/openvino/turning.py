"""Rotary embeddings in compiled models of the engine that it does not read again as it wrote them."""

from __future__ import annotations

from typing import Any

_ROTARY_EMBEDDING = "RoPE"
"""As the engine calls it."""


def turns_by_narrow_tables(compiled: Any) -> bool:
    """Whether one of the engine's compiled models has rotary embeddings by tables half as wide as what is turned.

    What it writes does not say how wide they are: read again, the program looks behind their end. Seen with OpenVINO
    2026.4. Tables of that width that are for half of the features cannot be told from these, and are right.
    """
    try:
        operations = compiled.get_runtime_model().get_ordered_ops()
    except Exception:  # noqa: BLE001  not every device of the engine has one
        return False
    return any(map(_has_narrow_tables, operations))


def _has_narrow_tables(operation: Any) -> bool:
    information = operation.get_rt_info()
    if "layerType" not in information or information["layerType"].astype(str) != _ROTARY_EMBEDDING:
        return False
    turned, table = (operation.get_input_partial_shape(port) for port in (0, 1))
    widths = [shape[len(shape) - 1] for shape in (turned, table)]
    return all(width.is_static for width in widths) and widths[0].get_length() == 2 * widths[1].get_length()
