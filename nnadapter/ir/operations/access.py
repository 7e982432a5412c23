"""Attributes of a known kind, read with their type; `check_attributes` has seen to the kind."""

from __future__ import annotations

from typing import cast

from nnadapter.ir.schema import Attributes


def integer(attributes: Attributes, name: str) -> int:
    """An attribute of kind INT."""
    return cast("int", attributes[name])


def integers(attributes: Attributes, name: str) -> tuple[int, ...]:
    """An attribute of kind INTS."""
    return cast("tuple[int, ...]", attributes[name])


def floats(attributes: Attributes, name: str) -> tuple[float, ...]:
    """An attribute of kind FLOATS."""
    return cast("tuple[float, ...]", attributes[name])


def string(attributes: Attributes, name: str) -> str:
    """An attribute of kind STRING."""
    return cast("str", attributes[name])


def number(attributes: Attributes, name: str) -> float:
    """An attribute of kind FLOAT."""
    return cast("float", attributes[name])
