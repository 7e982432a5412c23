"""Named driver calls for crash traces, and translation of third-party errors.

After a crash in C, `faulthandler` still prints function names. So drivers are called through functions named like
`device 'acme_c', call 'compute', segment 3 (nodes 'conv1' and 12 more)`.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any

from nnadapter.errors import NNAdapterError
from nnadapter.process.resources import memoize


def named_call(device: str, call: str, segment: int | None = None, nodes: Sequence[str] = ()) -> Callable[..., Any]:
    """Return a function that is called as `function(method, *arguments)`, and returns `method(*arguments)`.

    Crash traces show the function's name, which contains the arguments of `named_call`.
    """
    return _named(
        f"device {device!r}, call {call!r}{'' if segment is None else f', segment {segment}'}{_listed(nodes)}"
    )


class NamedCalls(dict[str, Callable[..., Any]]):
    """Cache of `named_call` by method."""

    def __init__(self, device: str, segment: int | None = None, nodes: Sequence[str] = ()) -> None:
        super().__init__()
        self.device = device
        self.about: tuple[()] | tuple[int, Sequence[str]] = () if segment is None else (segment, nodes)

    def __missing__(self, call: str) -> Callable[..., Any]:
        named = self[call] = named_call(self.device, call, *self.about)
        return named


@memoize(4096)
def _named(name: str) -> Callable[..., Any]:
    return FunctionType(_call.__code__.replace(co_name=name, co_qualname=name), {}, name)


@memoize(1)
def print_crashes() -> None:
    """Enable `faulthandler`, unless it is enabled already."""
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        with suppress(OSError, ValueError):  # closed
            faulthandler.enable(sys.__stderr__)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _listed(nodes: Sequence[str]) -> str:
    if len(nodes) < 2:
        return f" (node {nodes[0]!r})" if nodes else ""
    return f" (nodes {nodes[0]!r} and {len(nodes) - 1} more)"


_LONGEST = 300


@contextmanager
def translated_as(
    problem: str, advice: str, kind: type[NNAdapterError], describe: Callable[[BaseException], str]
) -> Iterator[None]:
    """Raise third-party exceptions of the block as `kind`, with the text `problem: describe(error); advice`."""
    try:
        yield
    except NNAdapterError:
        raise
    except Exception as error:  # packages raise all kinds of errors
        raise kind(f"{problem}: {describe(error)}; {advice}") from error


def one_line(text: str, error: BaseException) -> str:
    """Return `text` on one line, shortened if long; if it is empty, return the error's type."""
    joined = " ".join(text.split())
    return (joined if len(joined) <= _LONGEST else f"{joined[:_LONGEST]}…") or type(error).__name__
