"""All families of invalid models, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nnadapter.testing.mutations import attributes, border, operands, operations, quantization
from nnadapter.testing.mutations.changes import Mutation

_FILES = (operands, quantization, border, operations, attributes)

MUTATIONS: Mapping[str, Mutation] = MappingProxyType(
    {family.__name__: family for file in _FILES for family in file.FAMILIES}
)
"""What makes a valid model invalid, each in one way."""
