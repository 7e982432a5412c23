"""What was compiled, by the module or function that a person gave to torch.compile, as long as PyTorch keeps it."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from nnadapter.process.forking import new_lock
from nnadapter.torch.graphs import Graph

_COMPILES = "compile_wrapper"
"""The function of PyTorch's that compiles while it is called; its `fn` is what a person gave."""


@dataclass(slots=True, weakref_slot=True)
class Capture:
    """What PyTorch captured in one go: a graph for inference, or one forward and one backward."""

    ended: str
    """Why it ends where it does, if that is not the end of the function: a graph break."""
    line: str
    """`FILE:LINE` of where it ends so."""
    graphs: list[Graph] = field(default_factory=list)
    """In the order in which they were compiled."""


_captures: weakref.WeakKeyDictionary[Any, list[weakref.ref[Capture]]] = weakref.WeakKeyDictionary()
_all: list[weakref.ref[Capture]] = []
_lock = new_lock()


def remember(capture: Capture) -> None:
    """Note a capture for what is being compiled in this thread; it is forgotten when nobody keeps it any more."""
    owner = _compiled_now(sys._getframe())
    with _lock:
        _all[:] = [*(reference for reference in _all if reference() is not None), weakref.ref(capture)]
    if owner is not None:
        with _lock:
            _captures.setdefault(owner, []).append(weakref.ref(capture))


def captures_of(compiled: Any) -> list[Capture]:
    """What was captured for what torch.compile returned, or for what it was given, in order."""
    target = given_of(compiled)
    with _lock:
        noted = [reference() for reference in _captures.get(target, ())]
        all_captures = [reference() for reference in _all]
    target_captures = [capture for capture in noted if capture is not None]
    if target_captures or not isinstance(target, torch.nn.Module):
        return target_captures
    tensors = frozenset(map(id, (*target.parameters(), *target.buffers())))
    return [capture for capture in all_captures if capture is not None and _has_run(capture, tensors)]


def _has_run(capture: Capture, tensors: frozenset[int]) -> bool:
    """Whether it ran with these weights: PyTorch runs for a module what it captured for another of its class."""
    return any(program.has_run(tensors) for graph in capture.graphs for program in graph.programs)


def _compiled_now(frame: FrameType | None) -> Any:
    while frame is not None:
        if frame.f_code.co_name == _COMPILES and "fn" in frame.f_locals:
            return given_of(frame.f_locals["fn"])
        frame = frame.f_back
    return None


def given_of(compiled: Any) -> Any:
    """Return the module or function behind what was compiled."""
    if isinstance(compiled, torch._dynamo.OptimizedModule):
        return compiled._orig_mod
    compiled = getattr(compiled, "_torchdynamo_orig_callable", compiled)
    if isinstance(getattr(compiled, "__wrapped__", None), torch.nn.Module):  # PyTorch's own modules are called so
        return compiled.__wrapped__
    bound = getattr(compiled, "__self__", None)
    return bound if isinstance(bound, torch.nn.Module) else getattr(compiled, "__func__", compiled)
