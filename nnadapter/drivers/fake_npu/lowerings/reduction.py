"""Lowerings of operations along axes."""

from __future__ import annotations

from nnadapter.drivers.fake_npu.lowerings.elementwise import Lower, direct

lower_running_sum = direct("running_sum", "axis", "exclusive", "reverse")
"""CUM_SUM."""
lower_running_product = direct("running_product", "axis", "exclusive", "reverse")
"""CUM_PROD."""
lower_hardmax = direct("hardmax", "axis")
"""HARDMAX."""
lower_top_k = direct("top_k", "axis", "largest")
"""TOP_K; the result is always sorted, which the operation allows."""


def reduction(kernel: str) -> Lower:
    """REDUCE_…; whether axes are kept is seen from the output."""
    return direct(kernel, "axes")


def extreme(kernel: str) -> Lower:
    """ARG_MAX and ARG_MIN."""
    return direct(kernel, "axis", "select_last_index")
