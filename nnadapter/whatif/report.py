"""`WhatIf`: the facts of what-if, with their renderings as methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from nnadapter.reports.plain import to_lines
from nnadapter.whatif.facts import WhatIfFacts
from nnadapter.whatif.markdown import to_markdown
from nnadapter.whatif.text import to_text

RENDERERS: Mapping[str, Callable[[WhatIfFacts], str]] = MappingProxyType(
    {"text": to_text, "json": lambda facts: to_lines(facts.to_dict()), "md": to_markdown}
)
"""By format, see `nnadapter.reports.rendering.renderers`."""


class WhatIf(WhatIfFacts):
    """What a device lacks for some models, ranked. See `nnadapter.what_if`."""

    def to_json(self) -> str:
        """As JSON text, a feature on each line."""
        return RENDERERS["json"](self)

    def to_markdown(self) -> str:
        """As Markdown."""
        return RENDERERS["md"](self)

    def __str__(self) -> str:
        """As text for a terminal."""
        return RENDERERS["text"](self)
