"""Numbers with units, short enough for a table."""

from __future__ import annotations

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
