"""The messages of nnadapter/ir/model.proto as Python classes."""

from __future__ import annotations

from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.files.messages import Message, Messages
from nnadapter.ir.protobuf.descriptor import DESCRIPTOR

ADVICE = "it is damaged, or from elsewhere; write it again"
"""What to do about a file that is not what it should be."""
"""Bytes of the largest message, which may hold weights: as many as protobuf reads."""
_MESSAGES = Messages(DESCRIPTOR, "nnadapter.ir", InvalidModelError, "model", ADVICE, limits.MESSAGE_BYTES)

new, parse, refuse_unknown = _MESSAGES.new, _MESSAGES.parse, _MESSAGES.refuse_unknown

__all__ = ["ADVICE", "Message", "new", "parse", "refuse_unknown"]
