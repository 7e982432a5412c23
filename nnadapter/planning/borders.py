"""Boundary operations of a plan (transfers, casts and layout changes) with their predicted times.

1. A device in host memory, or with unknown costs, shares values with the host.
2. For any other device, the host casts data types that the device does not accept. Then values are transferred, and a
   channels-last device reorders them.
3. On a device with its own memory, resident values are not transferred again, but still reordered.
4. A value that is also on the host is not copied again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from nnadapter.costs.cost_model import DeviceCosts, Source, cast_seconds, is_foreign, reorder_seconds, transfer_seconds
from nnadapter.costs.work import Numbers
from nnadapter.planning.overlap import Boundaries, BoundaryOperation, DeviceResidentValue, ValuePlace, saving_steps
from nnadapter.records import dataclass, replace
from partition import Plan, Step, Value

_IMAGE_RANK = 4
Price = Callable[[Numbers], Numbers]
Move = tuple[str, ValuePlace, ValuePlace, float | None]


@dataclass(frozen=True, slots=True)
class _Moves:
    nbytes: int | None
    into: tuple[Move, ...]
    out: tuple[Move, ...]
    reordered_into: tuple[Move, ...]
    reordered_out: tuple[Move, ...]


def boundaries_of(plan: Plan, costs: Mapping[str, DeviceCosts], host: str) -> Boundaries:
    """Return a plan's boundary operations in execution order; `host` has the model's inputs and outputs."""
    walk = _Walk(plan, costs, host)
    walk.go()
    return Boundaries(operations=tuple(walk.steps), device_resident=tuple(walk.staying()))


class _Walk:
    def __init__(self, plan: Plan, costs: Mapping[str, DeviceCosts], host: str) -> None:
        self.steps: list[BoundaryOperation] = []
        self._plan, self._costs, self._host = plan, costs, host
        self._saving = saving_steps(plan, {name for name, cost in costs.items() if cost.has_resident_values})
        self._lies: dict[str, set[str]] = {name: {host} for name in plan.graph.inputs}
        self._moves: dict[tuple[object, ...], _Moves] = {}
        self._used: dict[tuple[str, str], list[int]] = {}
        """(value, device) -> segments on that device that produce or read the value."""

    def go(self) -> None:
        shares = {device: self._shares(device) for device in self._costs}
        for step in self._plan.steps:
            if shares[step.device]:
                for name in step.inputs:
                    self._to_host(name, step.segment)
                self._lies.update((name, {self._host}) for name in step.outputs)
            else:
                self._around(step)
        for name in self._plan.graph.outputs:
            self._to_host(name, None)

    def staying(self) -> Iterator[DeviceResidentValue]:
        for (name, device), segments in self._used.items():
            if len(segments) > 1:
                nbytes = self._plan.graph.value(name).nbytes
                yield DeviceResidentValue(value=name, device=device, segments=tuple(segments), nbytes=nbytes)

    def _shares(self, device: str) -> bool:
        device_costs = self._costs[device]
        declared = device_costs.source is not Source.ASSUMED and not device_costs.profile.host_memory
        return device == self._host or not (device_costs.has_resident_values or declared)

    def _around(self, step: Step) -> None:
        stays = step.segment in self._saving
        for name in step.inputs:
            lies, moves = self._lies.setdefault(name, {self._host}), self._moves_of(name, step.device)
            if not (stays and step.device in lies):
                self._to_host(name, step.segment)
                self._take(name, step.segment, moves.nbytes, moves.into)
            self._take(name, step.segment, moves.nbytes, moves.reordered_into)
            if stays:
                lies.add(step.device)
                self._used.setdefault((name, step.device), []).append(step.segment)
        for name in step.outputs:
            moves = self._moves_of(name, step.device)
            self._take(name, step.segment, moves.nbytes, moves.reordered_out)
            if stays:
                self._lies[name] = {step.device}
                self._used.setdefault((name, step.device), []).append(step.segment)
            else:
                self._lies[name] = {self._host}
                self._take(name, step.segment, moves.nbytes, moves.out)

    def _to_host(self, name: str, segment: int | None) -> None:
        lies = self._lies.setdefault(name, {self._host})
        if self._host not in lies:
            moves = self._moves_of(name, min(lies))
            self._take(name, segment, moves.nbytes, moves.out)
            lies.add(self._host)

    def _take(self, name: str, segment: int | None, nbytes: int | None, moves: tuple[Move, ...]) -> None:
        for kind, source, target, seconds in moves:
            step = BoundaryOperation(
                kind=kind, value=name, segment=segment, source=source, target=target, nbytes=nbytes, seconds=seconds
            )
            self.steps.append(step)

    def _moves_of(self, name: str, device: str) -> _Moves:
        value = self._plan.graph.value(name)
        key = device, value.dtype, value.shape, value.itemsize
        moves = self._moves.get(key)
        if moves is None:
            moves = self._moves[key] = _moves(value, self._costs[device], device, self._host)
        return moves


def _moves(value: Value, costs: DeviceCosts, device: str, host: str) -> _Moves:
    nbytes, is_image = value.nbytes, len(value.shape or ()) == _IMAGE_RANK
    host_place, device_place = (_place(location, is_image, value.dtype) for location in (host, device))
    seconds = _priced(costs, nbytes, lambda sizes: transfer_seconds(costs.profile, sizes))
    into: tuple[Move, ...] = (("transfer", host_place, device_place, seconds),)
    out: tuple[Move, ...] = (("transfer", device_place, host_place, seconds),)
    if costs.source is not Source.ASSUMED and is_foreign(costs.profile, value.dtype):
        cast: Move = ("cast", host_place, host_place, _priced(costs, nbytes, cast_seconds))
        into, out = (cast, *into), (*out, cast)
    if not (costs.profile.channels_last and is_image):
        return _Moves(nbytes, into, out, (), ())
    seconds = _priced(costs, nbytes, lambda sizes: reorder_seconds(costs.profile, sizes))
    last = replace(device_place, layout="NHWC")
    return _Moves(
        nbytes, into, out, (("layout", device_place, last, seconds),), (("layout", last, device_place, seconds),)
    )


def _priced(costs: DeviceCosts, nbytes: int | None, price: Price) -> float | None:
    if costs.source is Source.ASSUMED or nbytes is None:
        return None
    return float(price(np.array([float(nbytes)]))[0])


def _place(device: str, is_image: bool, dtype: str | None) -> ValuePlace:
    target, _, device_id = device.partition(":")
    return ValuePlace(target=target, device_id=device_id or "0", layout="NCHW" if is_image else "", dtype=dtype or "")
