"""What happens to values at the borders of segments: transfers, casts and changes of layout, as steps of the plan.

Every value at a border lies in a place: a device, a layout and a data type. A segment wants what it reads in its
device's own, and what it makes is there. The steps between are what the cost model prices (`costs.boundary`), merged
and cancelled as the executor does it (`running.residence`):

1. A device in the host's memory, or of which nothing is known, shares values with the host: there is no step.
2. To a device: a cast on the host where it does not take the data type, the transfer, and a reordering on the device
   where it wants channels last. From it: the same the other way round.
3. Where values stay, on a device with memory of its own, what it has is not transferred again, nor what only its own
   segments read. Each segment still reorders what it reads and makes.
4. A copy that the host has already is not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from nnadapter.costs.boundary import cast_seconds, is_foreign, reorder_seconds, transfer_seconds
from nnadapter.costs.device_costs import DeviceCosts, Source
from nnadapter.costs.roofline import Numbers
from nnadapter.planning.border_steps import Borders, BorderStep, StayingValue, ValuePlace
from nnadapter.planning.saving import saving_steps
from partition.plan import Plan, Step

_IMAGE_RANK = 4
Price = Callable[[Numbers], Numbers]
"""Bytes -> seconds."""


def borders_of(plan: Plan, costs: Mapping[str, DeviceCosts], host: str) -> Borders:
    """Return the steps at the borders of a plan, in the order in which they are done.

    Args:
        plan: the plan.
        costs: per device of it.
        host: the device in whose memory inputs and outputs lie.
    """
    walk = _Walk(plan, costs, host)
    return Borders(steps=tuple(walk.steps()), stay=tuple(walk.staying()))


class _Walk:
    """One walk over a plan, in its order."""

    def __init__(self, plan: Plan, costs: Mapping[str, DeviceCosts], host: str) -> None:
        self._plan, self._costs, self._host = plan, costs, host
        self._saving = saving_steps(plan, {name for name, each in costs.items() if each.keeps})
        self._lies: dict[str, set[str]] = {name: {host} for name in plan.graph.inputs}
        """Value -> the devices that have it."""
        self._places: dict[tuple[str, bool, str | None], ValuePlace] = {}
        """By device, whether it is an image, and data type."""
        self._used: dict[tuple[str, str], list[int]] = {}
        """Value and device -> segments that make or read it there."""

    def steps(self) -> Iterator[BorderStep]:
        for step in self._plan.steps:
            if self._shares(step.device):
                for name in step.inputs:
                    yield from self._to_host(name, step.segment)
                self._lies.update((name, {self._host}) for name in step.outputs)
            else:
                yield from self._around(step)
        for name in self._plan.graph.outputs:
            yield from self._to_host(name, None)

    def staying(self) -> Iterator[StayingValue]:
        for (name, device), segments in self._used.items():
            if len(segments) > 1:
                yield StayingValue(
                    value=name, device=device, segments=tuple(segments), nbytes=self._plan.graph.value(name).nbytes
                )

    def _shares(self, device: str) -> bool:
        known = self._costs[device]
        declared = known.source is not Source.ASSUMED and not known.profile.host_memory
        return device == self._host or not (known.keeps or declared)

    def _around(self, step: Step) -> Iterator[BorderStep]:
        """To a device and back, where each has memory of its own."""
        stays = step.segment in self._saving
        for name in step.inputs:
            lies = self._lies.setdefault(name, {self._host})
            if not (stays and step.device in lies):
                yield from self._to_host(name, step.segment)
                yield from self._crossing(name, step.device, step.segment, is_inward=True)
            yield from self._reordered(name, step.device, step.segment, is_inward=True)
            if stays:
                lies.add(step.device)
                self._used.setdefault((name, step.device), []).append(step.segment)
        for name in step.outputs:
            self._lies[name] = {step.device}
            yield from self._reordered(name, step.device, step.segment, is_inward=False)
            if stays:
                self._used.setdefault((name, step.device), []).append(step.segment)
            else:
                yield from self._to_host(name, step.segment)
                self._lies[name].discard(step.device)

    def _to_host(self, name: str, segment: int | None) -> Iterator[BorderStep]:
        lies = self._lies.setdefault(name, {self._host})
        if self._host not in lies:
            yield from self._crossing(name, min(lies), segment, is_inward=False)
            lies.add(self._host)

    def _crossing(self, name: str, device: str, segment: int | None, *, is_inward: bool) -> Iterator[BorderStep]:
        """The cast and the transfer, in the order in which they are done."""
        value, known = self._plan.graph.value(name), self._costs[device]
        here, there = self._place(name, self._host), self._place(name, device)
        source, target = (here, there) if is_inward else (there, here)
        nbytes = value.nbytes
        transfer = BorderStep(
            kind="transfer",
            value=name,
            segment=segment,
            source=source,
            target=target,
            nbytes=nbytes,
            seconds=self._priced(known, nbytes, lambda sizes: transfer_seconds(known.profile, sizes)),
        )
        if known.source is Source.ASSUMED or not is_foreign(known.profile, value.dtype):
            yield transfer
            return
        seconds = self._priced(known, nbytes, cast_seconds)
        cast = replace(transfer, kind="cast", source=here, target=here, seconds=seconds)
        yield from (cast, transfer) if is_inward else (transfer, cast)

    def _reordered(self, name: str, device: str, segment: int, *, is_inward: bool) -> Iterator[BorderStep]:
        value, known = self._plan.graph.value(name), self._costs[device]
        if not known.profile.channels_last or len(value.shape or ()) != _IMAGE_RANK:
            return
        plain = self._place(name, device)
        last = replace(plain, layout="NHWC")
        yield BorderStep(
            kind="layout",
            value=name,
            segment=segment,
            source=plain if is_inward else last,
            target=last if is_inward else plain,
            nbytes=value.nbytes,
            seconds=self._priced(known, value.nbytes, lambda sizes: reorder_seconds(known.profile, sizes)),
        )

    def _place(self, name: str, device: str) -> ValuePlace:
        value = self._plan.graph.value(name)
        kind = device, len(value.shape or ()) == _IMAGE_RANK, value.dtype
        place = self._places.get(kind)
        if place is None:
            place = self._places[kind] = _place(*kind)
        return place

    @staticmethod
    def _priced(known: DeviceCosts, nbytes: int | None, price: Price) -> float | None:
        if known.source is Source.ASSUMED or nbytes is None:
            return None
        return float(price(np.array([float(nbytes)]))[0])


def _place(device: str, is_image: bool, dtype: str | None) -> ValuePlace:
    target, _, device_id = device.partition(":")
    return ValuePlace(target=target, device_id=device_id or "0", layout="NCHW" if is_image else "", dtype=dtype or "")
