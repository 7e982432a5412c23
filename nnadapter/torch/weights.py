"""Weights that a session has as constants: whether they still are what they were, asked at every call.

PyTorch counts changes in place (`_version`), but not all: optimizers with `fused=True`, batch normalization and those
who go through `.data` change tensors behind its back. So steps of optimizers over weights are counted here, by a hook
on all of them, and memory is looked at (`samples.py`). A call with hundreds of weights asks for all of them in one go.
Tensors are held weakly: a session must not keep a model alive.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from nnadapter.torch.samples import Samples, samples_of

_version = attrgetter("_version")
_data_pointer = torch.Tensor.data_ptr


class Steps:
    """How many steps optimizers have made over a tensor."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_count = attrgetter("count")
_all_steps = Steps()
"""Over any tensor that is a constant of a session."""
_stepped = WeakIdKeyDictionary()
"""Tensor -> its `Steps`, for those that are constants of a session."""


@dataclass(slots=True, kw_only=True)
class Weights:
    """The tensors that a session has as constants, as they were when it was made."""

    places: tuple[int, ...]
    """Which of the region's inputs they are."""
    versions: list[int]
    addresses: list[int]
    steps: tuple[Steps, ...]
    counts: list[int]
    """What `steps` were."""
    all_steps: int
    """What all steps were when `counts` were last asked for."""
    samples: Samples
    references: tuple[Any, ...]
    """Weak ones; they say when a tensor is gone."""
    taken: Callable[[Sequence[Any]], Sequence[Any]]
    """Takes them out of the inputs of a call."""

    def hold(self, inputs: Sequence[Any]) -> bool:
        """Whether all of them are what they were, by the inputs of a call with the same tensors."""
        tensors = self.taken(inputs)
        return (
            [*map(_version, tensors)] == self.versions
            and [*map(_data_pointer, tensors)] == self.addresses
            and (self.all_steps == _all_steps.count or self._have_not_stepped())
            and self.samples.hold()
        )

    def _have_not_stepped(self) -> bool:
        step_count = _all_steps.count
        if [*map(_count, self.steps)] != self.counts:
            return False
        self.all_steps = step_count
        return True

    def changed(self, inputs: Sequence[Any]) -> list[int]:
        """The places of those that are not what they were."""
        tensors = self.taken(inputs)
        moved = {
            place
            for place, tensor, was in zip(self.places, tensors, self.addresses, strict=True)
            if _data_pointer(tensor) != was
        }
        counted = zip(self.places, tensors, self.versions, self.steps, self.counts, strict=True)
        changed_places = {
            place
            for place, tensor, version, steps, count in counted
            if _version(tensor) != version or steps.count != count
        }
        written = set() if moved else {self.places[index] for index in self.samples.changed()}
        return sorted(moved | changed_places | written)


def note_weights(inputs: Sequence[Any], places: tuple[int, ...], callback: Callable[[Any], None]) -> Weights:
    """Return what `inputs` at `places` are now; `callback` is called when one of these tensors is no more."""
    tensors = tuple(inputs[place] for place in places)
    if tensors:
        _watch_optimizers()
    all_steps = _all_steps.count
    steps = tuple(_stepped.setdefault(tensor, Steps()) for tensor in tensors)
    return Weights(
        places=places,
        versions=[*map(_version, tensors)],
        addresses=[*map(_data_pointer, tensors)],
        steps=steps,
        counts=[*map(_count, steps)],
        all_steps=all_steps,
        samples=samples_of(tensors),
        references=tuple(weakref.ref(tensor, callback) for tensor in tensors),
        taken=taker(places),
    )


def taker(places: tuple[int, ...]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return what takes the elements at `places` out of a row."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda inputs: [inputs[place] for place in places]


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
                _all_steps.count += 1
