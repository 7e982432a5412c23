"""`TorchReport`: the facts of what was compiled, with their renderings as methods."""

from __future__ import annotations

import json

from nnadapter.torch.facts import CompiledFacts
from nnadapter.torch.page import to_page
from nnadapter.torch.text import to_text


class TorchReport(CompiledFacts):
    """What became of what torch.compile was given."""

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def to_html(self) -> str:
        """The report as one HTML page: its text, and the page of each session, as for models."""
        return to_page(self)

    def __str__(self) -> str:
        """The report as text."""
        return to_text(self)
