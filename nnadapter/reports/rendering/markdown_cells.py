"""Pieces of GitHub-flavored Markdown, safe for names that nobody checked."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 160


def code(text: str) -> str:
    """A code span with `text` on one line, cut where it is very long: inside, no mark-up, link or mention counts."""
    plain = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if len(plain) > _LONGEST:
        plain = f"{plain[: _LONGEST - 3]}..."
    if not plain:
        return ""
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if plain[0] == "`" or plain[-1] == "`" else ""
    # A table splits cells before it looks for code.
    return fence + edge + plain.replace("|", "\\|") + edge + fence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], whole: int | None = None) -> str:
    """A table; below it how many rows are left out, where `whole` is more than there are."""
    lines = [_row(heads), _row(["---"] * len(heads)), *(_row(row) for row in rows)]
    if whole is not None and whole > len(rows):
        lines += ["", f"... and {whole - len(rows)} more; the JSON form has them all"]
    return "\n".join(lines)


def folded(summary: str, body: str) -> str:
    """Details that open on a click. `summary` is our own text, not the model's."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
