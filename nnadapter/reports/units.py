"""Numbers with units, short enough for a table."""

from __future__ import annotations

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


def count(number: int, one: str, many: str = "") -> str:
    """A number of things: `1 node`, `2 nodes`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
