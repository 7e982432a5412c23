"""The options of a context, and what JAX calls them."""

from __future__ import annotations

from nnadapter.drivers.capability import Option

PRECISIONS = {"float32": "highest", "tensorfloat32": "high", "bfloat16": "default"}
"""By name: JAX's precision of products. Processors compute in float32 whatever it says."""

OPTIONS = (
    Option(
        name="precision",
        default="float32",
        choices=tuple(PRECISIONS),
        help="In what at least a GPU or a TPU multiplies float32: lower ones are faster, and off by more.",
    ),
)
"""The options of every device."""
