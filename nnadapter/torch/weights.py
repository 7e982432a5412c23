"""Weights that a session has as constants: whether they still are what they were, asked at every call.

PyTorch counts changes in place (`_version`), but not all: optimizers with `fused=True` and batch normalization change
tensors behind its back. So what optimizers have stepped over is counted here, by a hook on all of them, and small
buffers are compared byte by byte. Tensors are held weakly: a session must not keep a model alive.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from ctypes import string_at
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

_COMPARED = 2**16
"""Bytes up to which a buffer is compared: batch normalization of 16384 channels. That takes some microseconds."""
_version = attrgetter("_version")
_memory = torch.Tensor.data_ptr


class Steps:
    """How many steps optimizers have made over a tensor."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_count = attrgetter("count")
_stepped = WeakIdKeyDictionary()
"""Tensor -> its `Steps`, for those that are constants of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The tensors that a session has as constants, as they were when it was made."""

    places: tuple[int, ...]
    """Which of the region's inputs they are."""
    versions: tuple[int, ...]
    addresses: tuple[int, ...]
    steps: tuple[Steps, ...]
    counts: tuple[int, ...]
    """What `steps` were."""
    contents: tuple[tuple[int, bytes], ...]
    """Address and bytes of small buffers."""
    references: tuple[Any, ...]
    """Weak ones; they say when a tensor is gone."""

    def hold(self, inputs: Sequence[Any]) -> bool:
        """Whether all of them are what they were, by the inputs of a call with the same tensors."""
        given = [inputs[place] for place in self.places]
        return (
            tuple(map(_version, given)) == self.versions
            and tuple(map(_memory, given)) == self.addresses
            and tuple(map(_count, self.steps)) == self.counts
            and all(string_at(address, len(was)) == was for address, was in self.contents)
        )

    def changed(self, inputs: Sequence[Any]) -> list[int]:
        """The places of those that are not what they were."""
        known = dict(self.contents)
        was = zip(self.places, self.versions, self.addresses, self.steps, self.counts, strict=True)
        return [
            place
            for place, version, address, steps, count in was
            if _version(inputs[place]) != version
            or _memory(inputs[place]) != address
            or steps.count != count
            or (address in known and string_at(address, len(known[address])) != known[address])
        ]


def note_weights(inputs: Sequence[Any], places: tuple[int, ...], gone: Callable[[Any], None]) -> Weights:
    """Return what `inputs` at `places` are now; `gone` is called when one of these tensors is no more."""
    tensors = tuple(inputs[place] for place in places)
    if tensors:
        _watch_optimizers()
    steps = tuple(_stepped.setdefault(tensor, Steps()) for tensor in tensors)
    return Weights(
        places=places,
        versions=tuple(map(_version, tensors)),
        addresses=tuple(map(_memory, tensors)),
        steps=steps,
        counts=tuple(map(_count, steps)),
        contents=tuple((_memory(tensor), _bytes(tensor)) for tensor in tensors if _is_compared(tensor)),
        references=tuple(weakref.ref(tensor, gone) for tensor in tensors),
    )


def _is_compared(tensor: Any) -> bool:
    if isinstance(tensor, torch.nn.Parameter) or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return False
    return 0 < int(tensor.nbytes) <= _COMPARED


def _bytes(tensor: Any) -> bytes:
    return string_at(_memory(tensor), tensor.nbytes)


@functools.cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
    fused = any(group.get("fused") for group in optimizer.param_groups)
    if fused or not torch.compiler.is_compiling():  # other compiled steps write by copies, which PyTorch counts
        _count_step(optimizer)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _count_step(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            steps = _stepped.get(parameter)
            if steps is not None:
                steps.count += 1
