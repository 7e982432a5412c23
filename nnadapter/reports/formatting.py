"""Formatting of report text: numbers with units, wrapped lines, and Markdown cells."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

GUESS = "~"
"""Stands before a number that rests on costs that nobody measured."""
_BINARY: tuple[float, tuple[str, ...]] = (1024.0, ("", "Ki", "Mi", "Gi", "Ti"))
_DECIMAL: tuple[float, tuple[str, ...]] = (1000.0, ("", "k", "M", "G", "T", "P"))


def quantity(number: float, unit: str) -> str:
    """A number with a unit and a prefix that keeps it short: `12.3 MFLOP`, `4.0 KiB`."""
    base, prefixes = _BINARY if unit == "B" else _DECIMAL
    index = 0
    while abs(number) >= base and index < len(prefixes) - 1:
        number /= base
        index += 1
    return f"{number:.0f} {unit}" if index == 0 else f"{number:.1f} {prefixes[index]}{unit}"


def work(flops: int, uncounted: int) -> str:
    """FLOPs of nodes, some of which are not counted: `12.3 MFLOP`, `≥12.3 MFLOP`, `?`."""
    if not uncounted:
        return quantity(flops, "FLOP")
    return f"≥{quantity(flops, 'FLOP')}" if flops else "?"


def duration(seconds: float) -> str:
    """A time with the unit that suits it: `820 ns`, `45.0 µs`, `3.20 ms`, `1.50 s`."""
    size = abs(seconds)
    if size >= 1:
        return f"{seconds:.2f} s"
    if size >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.1f} µs" if size >= 1e-6 or not size else f"{seconds * 1e9:.0f} ns"


def foretold(seconds: float, guessed: bool) -> str:
    """A predicted time, marked where it is a guess: `~3.20 ms`."""
    return f"{GUESS if guessed else ''}{duration(seconds)}"


def count(number: int, one: str, many: str = "") -> str:
    """A number of things: `1 node`, `2 nodes`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


WIDTH = 100


def wrapped(text: str, head: str) -> list[str]:
    """`text` behind `head`, on as many lines as it takes; names are never cut."""
    indent = " " * len(head)
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


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
