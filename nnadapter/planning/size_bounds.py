"""Whether tensors of a model that leaves sizes open lie within the bounds that a device gives.

Each question is decided on traced numbers, so that the answers hold for every run: sizes beyond them are of another
class, for which the device is asked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from nnadapter.drivers.capability import Capability, OpenSizes, SizeBounds
from nnadapter.ir.model import Model
from nnadapter.ir.tracing import Traced, current, is_traced


def beyond_bounds(model: Model, capability: Capability) -> str:
    """Return what of a model's open sizes is beyond a device's bounds, in words; nothing if all is within them."""
    bounds = capability.size_bounds
    if capability.open_sizes is not OpenSizes.BOUNDS or bounds is None:
        return ""
    for operand in model.operands:
        dimensions = operand.type.dimensions
        if is_traced(dimensions):
            for why in _beyond(dimensions, bounds):
                return f"{operand.name!r} is {list(current(dimensions))}, {why}"
    return ""


def _beyond(dimensions: tuple[Any, ...], bounds: SizeBounds) -> Iterator[str]:
    for size in dimensions:
        if not isinstance(size, Traced):
            continue
        if size < bounds.smallest:
            yield f"its smallest size is {bounds.smallest}"
        if bounds.largest is not None and size > bounds.largest:
            yield f"its largest size is {bounds.largest}"
    if bounds.largest_elements is not None and prod(dimensions) > bounds.largest_elements:
        yield f"a tensor of it has at most {bounds.largest_elements} elements"
