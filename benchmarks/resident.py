"""How much memory this process holds, as the system counts it."""

from __future__ import annotations

from pathlib import Path

MEGABYTE = 1e6


def resident_bytes() -> int:
    """Bytes in memory now."""
    return _status("VmRSS")


def anonymous_bytes() -> int:
    """Bytes in memory now that no file is mapped to."""
    return _status("RssAnon")


def peak_bytes() -> int:
    """The most bytes that were in memory since the program began; what getrusage says goes back before that."""
    return _status("VmHWM")


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10
