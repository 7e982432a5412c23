"""Digests of arrays."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from nnadapter.ir.operand import Array


def digest_of(array: Array) -> str:
    """Return the SHA-256 of an array's bytes in C order, 64 hexadecimal digits; neither type nor dimensions count."""
    return sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
