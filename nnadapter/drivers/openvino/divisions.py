"""Divisions in the engine's model of a model that rounds.

The engine multiplies by a reciprocal where a model divides, and is off by the last bit in a tenth of all cases. Halves
are rounded to the other neighbor then: DynamicQuantizeLinear, written out, would be off by a step. Operators that bear
the engine's own mark for it are divided as IEEE 754 says. Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

from typing import Any

_MARK = "nonconvertable_divide_0"
"""The engine's name for what keeps a division from becoming a product; it looks whether there is one."""


def divide_exactly(model: Any) -> None:
    """Mark all divisions."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() == "Divide":
            operator.get_rt_info()[_MARK] = True
