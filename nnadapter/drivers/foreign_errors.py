"""Errors of packages as errors of the tree: what failed, the package's own words, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nnadapter.errors import NNAdapterError

_LONGEST = 300


@contextmanager
def translated_as(
    problem: str, advice: str, kind: type[NNAdapterError], words: Callable[[BaseException], str]
) -> Iterator[None]:
    """Turn whatever a package raises into a `kind`: `problem` failed, its own `words`, `advice`."""
    try:
        yield
    except NNAdapterError:
        raise
    except Exception as error:  # packages raise RuntimeError, TypeError, ValueError and errors of their own
        raise kind(f"{problem}: {words(error)}; {advice}") from error


def one_line(text: str, error: BaseException) -> str:
    """A message on one line, not too long; the name of the error where it says nothing."""
    joined = " ".join(text.split())
    return (joined if len(joined) <= _LONGEST else f"{joined[:_LONGEST]}…") or type(error).__name__
