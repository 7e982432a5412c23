"""Runs on devices with their own memory: cached copies of inputs, resident outputs, transferred bytes.

1. A result that only our graphs read is a `Resident` tensor, copied to the host if other code reads it.
2. If parameters are device-resident, so are gradients, and values written into parameters, buffers and optimizer state.
3. Other visible results are copied to the host. They also stay on the device if they are fed back: gradients, and
   values written into an input.
4. Inputs are cached if they are parameters, results that are fed back, or the same tensor twice in a row.
5. Values that save no transfer, or do not fit, are excluded and tried again after 2 calls, then 4, up to `_MOST`.

Writes to a tensor cannot be detected reliably, so each feed compares the tensor with a host copy in full, which is
faster than a transfer. A copy lives no longer than the tensor's memory and its owner: a parameter, a tensor that a
graph writes to, or an `Occurrence`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._dynamo import compiled_autograd

from nnadapter.drivers.selection import CPU, canonical, named_requests
from nnadapter.drivers.tensor_copies import HOST, Copies, Transfer, can_lie_on_devices
from nnadapter.engine.bound_steps import has_memory
from nnadapter.engine.device_value import DeviceValue
from nnadapter.errors import OutOfMemoryError
from nnadapter.records import dataclass
from nnadapter.session.session import InferenceSession
from nnadapter.torch.regions import Roles, Settings
from nnadapter.torch.resident_tensors import Array, Resident, Results

_FIRST, _MOST = 2, 1024


class Trials:
    """Choice of results and inputs to try as device-resident. Thread-safe; a race costs one more try."""

    def __init__(self, places: Collection[int]) -> None:
        self._places = frozenset(places)
        self.staying = self._places
        self.passing: frozenset[str] = frozenset()
        self.is_crowded = False
        self._calls = 0  # until everything is tried again; 0 if nothing is excluded
        self._next = _FIRST

    def begin(self) -> None:
        self._calls = max(self._calls - 1, 0)
        if not self._calls:
            self.staying, self.passing, self.is_crowded = self._places, frozenset(), False

    def leave_out(self, places: Collection[int], names: Collection[str]) -> None:
        self.staying, self.passing = self.staying.difference(places), self.passing.union(names)
        if places or names:
            self._wait()
        elif not self._calls:
            self._next = _FIRST

    def crowd(self) -> None:
        self.staying, self.is_crowded = frozenset(), True
        self._wait()

    def never(self, place: int) -> None:
        self._places, self.staying = self._places - {place}, self.staying - {place}

    def _wait(self) -> None:
        if not self._calls:
            self._calls, self._next = self._next, min(2 * self._next, _MOST)


def planned_transfers(session: InferenceSession) -> tuple[int, int] | None:
    """Return bytes that a plan copies to devices and back; None if unknown."""
    steps = [step for step in session.report().boundaries.operations if step.kind == "transfer"]
    owning = {name.partition(":")[0] for name in session.devices if has_memory(name)}
    if any(step.nbytes is None for step in steps):
        return None
    into = sum(step.nbytes or 0 for step in steps if step.target.target in owning)
    return into, sum(step.nbytes or 0 for step in steps if step.source.target in owning)


_MOST_MISSES = 4
"""Consecutive mismatches with the host copy that end caching."""
_BITS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32), 8: (torch.int64, np.int64)}
"""Element size -> types for bitwise comparison: NaN equals NaN, 0 differs from -0."""
_Key = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]
"""Address, data type, sizes, strides."""


class Occurrence:
    """Weak reference to a tensor that was an input or result, which bounds the life of its cached copy."""

    __slots__ = ("__weakref__", "_key", "_memory", "was_fed")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._key, self._memory = _key(tensor), weakref.ref(tensor.untyped_storage())
        self.was_fed = False

    def matches(self, tensor: torch.Tensor) -> bool:
        return self._key == _key(tensor) and self._memory() is tensor.untyped_storage()


@dataclass(eq=False, slots=True)
class CachedCopies:
    """Cached copy of a tensor's memory."""

    memory: weakref.ref[Any]
    owner: weakref.ref[Any]
    copies: Copies | None = None
    missed: int = 0


class CopyCache:
    """Cache of tensors on devices. Thread-safe; a race costs one more copy."""

    def __init__(self) -> None:
        self._known: dict[_Key, CachedCopies] = {}

    def __len__(self) -> int:
        return sum(entry.copies is not None for entry in list(self._known.values()))

    def fed(self, tensor: torch.Tensor, array: Array, owner: object | None) -> Copies | None:
        """Return cached copies of a tensor to feed in place of `array`, or None.

        If there is an `owner`, missing copies are created, and live as long as the owner.
        """
        if tensor.is_neg():  # its memory holds the negated values
            return None
        key = _key(tensor)
        entry = self._of(key, tensor)
        copies = None if entry is None else entry.copies  # read once: another thread may replace it
        if entry is not None and copies is not None:
            if _are_equal(tensor, copies.host()):
                entry.missed = 0
                if type(occurrence := entry.owner()) is Occurrence:
                    occurrence.was_fed = True
                return copies
            entry.missed += 1
            entry.copies = None
        if owner is None or not can_lie_on_devices(array) or array.dtype.itemsize not in _BITS:
            return None
        if entry is None:
            entry = self._add(key, tensor, owner)
        if entry.missed >= _MOST_MISSES:
            return None
        entry.copies = copies = Copies(np.array(array, order="C"))
        return copies

    def note(self, tensor: torch.Tensor, copies: Copies, owner: object) -> None:
        """Record `copies` as the contents that a tensor has, or will have."""
        key = _key(tensor)
        entry = self._of(key, tensor)
        if entry is None:
            entry = self._add(key, tensor, owner)
        elif entry.owner() is not owner:
            entry.owner = self._referred(key, owner)
        entry.copies = copies

    def _of(self, key: _Key, tensor: torch.Tensor) -> CachedCopies | None:
        entry = self._known.get(key)
        return entry if entry is not None and entry.memory() is tensor.untyped_storage() else None

    def _add(self, key: _Key, tensor: torch.Tensor, owner: object) -> CachedCopies:
        memory = tensor.untyped_storage()
        entry = self._known[key] = CachedCopies(self._referred(key, memory), self._referred(key, owner))
        return entry

    def _referred(self, key: _Key, referent: object) -> weakref.ref[Any]:
        return weakref.ref(referent, partial(self._known.pop, key))  # a finalizer in C runs no Python

    def forget(self) -> None:
        self._known.clear()

    def release(self, unused: Iterable[Copies]) -> None:
        unused_ids = set(map(id, unused))
        for key, entry in list(self._known.items()) if unused_ids else ():
            if id(entry.copies) in unused_ids:
                self._known.pop(key, None)


def _key(tensor: torch.Tensor) -> _Key:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _are_equal(tensor: torch.Tensor, array: Array) -> bool:
    if tensor.shape != array.shape or tensor.itemsize != array.dtype.itemsize:
        return False
    bits, array_bits = _BITS[array.dtype.itemsize]
    return bool(torch.equal(tensor.detach().view(bits), torch.from_numpy(array.view(array_bits))))


COPY_CACHE = CopyCache()


_CALLS_BEFORE_LEAVING = 3
Fed = tuple[tuple[str, int, Callable[[Any], Any]], ...]


class TransferredBytes(NamedTuple):
    """Bytes of one call."""

    input_bytes: int
    output_bytes: int
    to_device: int
    to_host: int


def added(counts: Iterable[TransferredBytes]) -> TransferredBytes:
    """Return the sum over several regions."""
    return TransferredBytes(*map(sum, zip(TransferredBytes(0, 0, 0, 0), *counts, strict=True)))


def owning_device(session: InferenceSession) -> str:
    """Return the session's first device with its own memory; otherwise empty."""
    return next(filter(owns, session.devices), "")


def owns_memory(settings: Settings) -> bool:
    """Return True if one of the selected devices has its own memory."""
    return any(owns(canonical(name)) for name in named_requests(settings.devices))


def owns(device: str) -> bool:
    """Return True if the device has its own memory."""
    return device != CPU and has_memory(device)


class ResidentRunner:
    """Runner of a session with device-resident values. Thread-safe.

    `fed` has each input's name, position and conversion to an array.
    """

    def __init__(
        self, session: InferenceSession, device: str, fed: Fed, outputs: Mapping[str, torch.dtype], roles: Roles
    ) -> None:
        self._moved = TransferredBytes(0, 0, 0, 0)
        self._is_apart = False  # the last run was from arrays to arrays and recorded no transfers
        self._session, self._device, self._fed, self._outputs = session, device, fed, tuple(outputs)
        self._dtypes = tuple(outputs.values())
        self._roles, self._trials = roles, Trials(roles.resident_results)
        self._came: dict[str, Occurrence] = {}  # last tensor of each input
        self._waiting: dict[int, tuple[Occurrence, ...]] = {}  # results that may be fed back, and were not yet

    @property
    def is_crowded(self) -> bool:
        return self._trials.is_crowded

    @property
    def transferred_bytes(self) -> TransferredBytes:
        crossed = planned_transfers(self._session) if self._is_apart else None
        return self._moved._replace(to_device=crossed[0], to_host=crossed[1]) if crossed else self._moved

    def run(self, inputs: Sequence[Any], results: Results) -> tuple[Any, ...]:
        self._trials.begin()
        feeds = {name: self._feed(name, inputs[place], convert) for name, place, convert in self._fed}
        try:
            values = self._run(feeds)
        except OutOfMemoryError:  # retry without resident values, which use memory
            COPY_CACHE.forget()
            self._trials.crowd()
            values = self._run(feeds)
        tensors = results([self._output_contents(place, value, inputs) for place, value in enumerate(values)], inputs)
        self._note(tensors, values, inputs)
        return tuple(
            self._resident_tensor(tensor, dtype) if type(tensor) is Copies else tensor
            for tensor, dtype in zip(tensors, self._dtypes, strict=True)
        )

    def _resident_tensor(self, copies: Copies, dtype: torch.dtype) -> torch.Tensor:
        tensor = Resident.of(copies, dtype, self._read)
        captured = torch._dynamo.config.compiled_autograd or compiled_autograd.compiled_autograd_enabled
        return tensor.plain() if captured else tensor

    def _feed(self, name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
        owner = value
        if type(value) is Resident:
            if value.copies is not None:
                return value.copies
            value = value.resident_state.on_host(value.dtype)
        array = convert(value)
        is_tensor = isinstance(value, torch.Tensor) and array.dtype.itemsize == value.itemsize
        if not is_tensor or name in self._trials.passing:
            return array
        if not isinstance(owner, (torch.nn.Parameter, Resident)):
            owner = self._previous_occurrence(name, value)
        return COPY_CACHE.fed(value, array, owner) or array

    def _previous_occurrence(self, name: str, tensor: torch.Tensor) -> Occurrence | None:
        occurrence = self._came.get(name)
        if occurrence is not None and occurrence.matches(tensor):
            return occurrence
        self._came[name] = Occurrence(tensor)
        return None

    def _run(self, feeds: Mapping[str, Any]) -> list[Any]:
        transfers: list[Transfer] = []
        binding, staying = self._session.io_binding(), self._trials.staying
        for name, value in feeds.items():
            if isinstance(value, Copies):
                binding.bind_ortvalue_input(name, DeviceValue(value, self._device))
            else:
                binding.bind_cpu_input(name, value)
        for place, name in enumerate(self._outputs):
            binding.bind_output(name, self._device if place in staying else CPU)
        self._session.run_with_iobinding(binding)
        values = [value.contents if isinstance(value, DeviceValue) else value for value in binding.get_outputs()]
        provenance = self._session.provenance
        assert provenance is not None, "it has run"
        transfers.extend(provenance.transfers)
        is_apart = any(step.device == self._device for step in provenance.steps) and not transfers
        self._learn(feeds, transfers)
        self._count(feeds, values, transfers, is_apart=is_apart)
        return values

    def _learn(self, feeds: Mapping[str, Any], transfers: Sequence[Transfer]) -> None:
        brought = {transfer.value for transfer in transfers if transfer.target == self._device}
        places = [place for place, name in enumerate(self._outputs) if name in brought]
        unused = {
            name: value
            for name, value in feeds.items()
            if type(value) is Copies and name not in self._trials.passing and not value.is_on(self._device)
        }
        COPY_CACHE.release(unused.values())
        self._trials.leave_out(places, unused)

    def _output_contents(self, place: int, value: Any, inputs: Sequence[Any]) -> Any:
        if self._stays_resident(place, inputs):
            return value if type(value) is Copies else Copies(value)
        if type(value) is not Copies or place in self._roles.hidden:
            return value
        if value.has_array:
            return value.own_array()
        transfers: list[Transfer] = []
        array = value.host(self._outputs[place], transfers)
        self._read(sum(transfer.nbytes for transfer in transfers))
        return array.copy()

    def _stays_resident(self, place: int, inputs: Sequence[Any]) -> bool:
        target = self._roles.overwritten_inputs.get(place)
        return place in self._roles.device_tensor_results if target is None else type(inputs[target]) is Resident

    def _note(self, tensors: Sequence[Any], values: Sequence[Any], inputs: Sequence[Any]) -> None:
        for place, value in enumerate(values):
            if type(value) is not Copies or place in self._roles.hidden or self._stays_resident(place, inputs):
                continue
            if place in self._roles.overwritten_inputs:
                target = inputs[self._roles.overwritten_inputs[place]]
                COPY_CACHE.note(target, value, target)
                continue
            if place in self._trials.staying:
                self._keep(place, tensors[place], value)

    def _keep(self, place: int, tensor: torch.Tensor, value: Copies) -> None:
        waiting = self._waiting.get(place, ())
        waiting = () if waiting and waiting[-1].was_fed else waiting
        if len(waiting) >= _CALLS_BEFORE_LEAVING:
            self._trials.never(place)
            self._waiting[place] = ()
            return
        self._waiting[place] = (*waiting, holder := Occurrence(tensor))
        COPY_CACHE.note(tensor, value, holder)

    def _count(
        self, feeds: Mapping[str, Any], values: Sequence[Any], transfers: Sequence[Transfer], *, is_apart: bool
    ) -> None:
        input_bytes, output_bytes = sum(value.nbytes for value in feeds.values()), sum(value.nbytes for value in values)
        if is_apart and not all(type(value) is Copies and value.is_on(self._device) for value in feeds.values()):
            self._moved, self._is_apart = TransferredBytes(input_bytes, output_bytes, input_bytes, output_bytes), True
            return
        to_host = sum(transfer.nbytes for transfer in transfers if transfer.target == HOST)
        to_device = sum(transfer.nbytes for transfer in transfers if transfer.target != HOST)
        self._moved, self._is_apart = TransferredBytes(input_bytes, output_bytes, to_device, to_host), False

    def _read(self, nbytes: int) -> None:
        self._moved = self._moved._replace(to_host=self._moved.to_host + nbytes)
