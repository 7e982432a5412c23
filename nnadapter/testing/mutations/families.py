"""All families of invalid models, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nnadapter.testing.mutations.attributes import ATTRIBUTE_MUTATIONS
from nnadapter.testing.mutations.border import SIGNATURE_MUTATIONS
from nnadapter.testing.mutations.changes import Mutation
from nnadapter.testing.mutations.operands import OPERAND_MUTATIONS
from nnadapter.testing.mutations.operations import OPERATION_MUTATIONS
from nnadapter.testing.mutations.quantization import QUANTIZATION_MUTATIONS

MUTATIONS: Mapping[str, Mutation] = MappingProxyType(
    {
        family.__name__: family
        for family in (
            *OPERAND_MUTATIONS,
            *QUANTIZATION_MUTATIONS,
            *SIGNATURE_MUTATIONS,
            *OPERATION_MUTATIONS,
            *ATTRIBUTE_MUTATIONS,
        )
    }
)
"""What makes a valid model invalid, each in one way."""
