"""What is put right in a structure of Paddle 3 before paddle2onnx reads it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nnadapter.paddle_models.expansions import expand
from nnadapter.paddle_models.structures import walked

_REALS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "1.bicubic_interp": ("scale",),
        "1.bilinear_interp": ("scale",),
        "1.group_norm": ("epsilon",),
        "1.leaky_relu": ("negative_slope",),
        "1.linear_interp": ("scale",),
        "1.nearest_interp": ("scale",),
        "1.pad3d": ("pad_value",),
        "1.softplus": ("beta", "threshold"),
        "1.trilinear_interp": ("scale",),
    }
)
"""Operation -> attributes that Paddle writes as doubles, and the converter takes as floats alone."""
_DOUBLE, _FLOAT = "0.a_f64", "0.a_f32"
_HOISTED = "1.full_int_array"
"""Constants that the converter finds in the outermost block alone: axes and shapes."""


def rewrite(program: Any) -> bool:
    """Put a program right, in place, and return whether anything was to be done.

    1. Attributes that are doubles, where floats are read, become floats.
    2. Constants of axes and shapes in graphs of loops and branches go in front of these, where they are as good.
    3. Operations are expanded into others, for attributes that the converter does not take.
    """
    changed = expand(program)
    for operation in walked(program):
        for attribute in operation.get("A", ()):
            if isinstance(attribute, dict) and attribute.get("N") in _REALS.get(operation["#"], ()):
                changed |= _narrowed(attribute["AT"])
    for region in program["regions"]:
        for block in region["blocks"]:
            changed |= _hoisted(block)
    return changed


def _narrowed(value: Any) -> bool:
    values = value["D"] if value["#"] == "0.a_array" else [value]
    wide = [element for element in values if element["#"] == _DOUBLE]
    for wide_value in wide:
        wide_value["#"] = _FLOAT
    return bool(wide)


def _hoisted(block: Any) -> bool:
    """Move the constants in graphs inside of a block's operations in front of the operation."""
    operations: list[Any] = []
    for operation in block["ops"]:
        for inner in (
            nested_block for region in operation.get("regions", ()) for nested_block in _region_blocks(region)
        ):
            operations += (nested_operation for nested_operation in inner["ops"] if nested_operation["#"] == _HOISTED)
            inner["ops"] = [nested_operation for nested_operation in inner["ops"] if nested_operation["#"] != _HOISTED]
        operations.append(operation)
    is_changed = len(operations) != len(block["ops"])
    block["ops"] = operations
    return is_changed


def _region_blocks(region: Any) -> list[Any]:
    """Every block of a region, those of regions inside of it as well."""
    blocks = list(region["blocks"])
    for block in blocks:  # which grows
        blocks += (
            nested_block
            for operation in block["ops"]
            for inner in operation.get("regions", ())
            for nested_block in inner["blocks"]
        )
    return blocks
