"""Names on a command line: one that nothing is called is an error, and no empty table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence


def named(parser: argparse.ArgumentParser, names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names given, each of which must be known, or all that are known if none is given."""
    every = list(known)
    for name in names:
        if name not in every:
            parser.error(f"nothing is called {name!r}; there are {', '.join(every)}")
    return list(names) or every


def containing(parser: argparse.ArgumentParser, parts: Sequence[str], known: Iterable[str]) -> list[str]:
    """The known names that contain one of the parts given, at least one name, or all if no part is given."""
    every = list(known)
    found = [name for name in every if not parts or any(part in name for part in parts)]
    if not found:
        parser.error(f"no name contains {' or '.join(map(repr, parts))}; there are {', '.join(every)}")
    return found
