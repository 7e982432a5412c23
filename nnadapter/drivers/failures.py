"""Driver failures: names of calls in crash traces, and translation of third-party errors.

Says in which call of which driver the process crashed, in the trace of Python's `faulthandler`.

A crash (a segmentation fault, an abort) ends the process in C: no Python runs after it. What still prints is
`faulthandler`, and that prints the names of the functions that were under way in each thread. So drivers are called by
a function with such a name: `device 'acme_c', call 'compute', segment 3 (nodes 'conv1' and 12 more)`. Nothing has to be
noted before a call, and nothing taken back after it.
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
    """Return what calls a function with arguments, and is named for a call of a driver.

    Args:
        device: the device's name.
        call: the driver's method.
        segment: the segment that it is about.
        nodes: of the segment, by name.
    """
    return _named(
        f"device {device!r}, call {call!r}{'' if segment is None else f', segment {segment}'}{_listed(nodes)}"
    )


class NamedCalls(dict[str, Callable[..., Any]]):
    """What `named_call` gives for each call of a device about one thing, by the driver's method, named once."""

    def __init__(self, device: str, segment: int | None = None, nodes: Sequence[str] = ()) -> None:
        super().__init__()
        self.device = device
        """The device's name."""
        self.about: tuple[()] | tuple[int, Sequence[str]] = () if segment is None else (segment, nodes)
        """The segment and its nodes; empty where it is about none."""

    def __missing__(self, call: str) -> Callable[..., Any]:
        """Name one."""
        named = self[call] = named_call(self.device, call, *self.about)
        return named


@memoize(4096)
def _named(name: str) -> Callable[..., Any]:
    return FunctionType(_call.__code__.replace(co_name=name, co_qualname=name), {}, name)


@memoize(1)
def print_crashes() -> None:
    """Have `faulthandler` print where a crash was, to standard error, unless somebody has it print already."""
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        with suppress(OSError, ValueError):  # it is closed
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
