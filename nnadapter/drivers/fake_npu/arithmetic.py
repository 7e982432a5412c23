"""How the device computes, as far as a person may choose."""

from __future__ import annotations

from typing import NamedTuple


class Arithmetic(NamedTuple):
    """What decides how results are rounded."""

    half_precision: bool = False
    """Weights and the result of every instruction are rounded to half precision."""
    exact: bool = False
    """No sum is made in another way than its definition says: no convolution by transformed tiles."""

    def __str__(self) -> str:
        """The options that say so, in words."""
        return f"precision {'float16' if self.half_precision else 'float32'}" + (", exact" if self.exact else "")


USUAL = Arithmetic()
"""What a context computes with where nobody says otherwise."""
