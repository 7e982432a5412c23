"""The messages of compiled_model.proto as Python classes."""

from __future__ import annotations

from nnadapter import limits
from nnadapter.compiled_models.descriptor import DESCRIPTOR
from nnadapter.errors import CompiledModelError
from nnadapter.files.container.layout import ADVICE
from nnadapter.files.messages import Message, Messages

VERSION = 6
"""The version of what a compiled model is made of; newer ones are refused."""
MESSAGES = Messages(DESCRIPTOR, "nnadapter.compiled", CompiledModelError, "compiled model", ADVICE, limits.PLAN_BYTES)

__all__ = ["ADVICE", "MESSAGES", "VERSION", "Message"]
