"""Long texts on lines that fit a terminal."""

from __future__ import annotations

import textwrap

WIDTH = 100


def wrapped(text: str, head: str) -> list[str]:
    """`text` behind `head`, on as many lines as it takes; names are never cut."""
    indent = " " * len(head)
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
