"""How a converter says no."""

from __future__ import annotations

from partition.graph import Reason, Unsupported


class Refusal(Exception):  # noqa: N818  it is an answer, not an error
    """Raised inside a converter to refuse its node; whoever calls the converter turns it into a verdict."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.verdict = Unsupported(reason, detail)
        """The refusal as a value."""
