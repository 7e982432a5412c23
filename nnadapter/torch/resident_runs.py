"""Runs on devices with memory of their own: cached copies of inputs, resident outputs, transferred bytes.

What of a session's values gains nothing by lying on its device: left out for a while, and then tried again.

What is seen in one call may be of that moment: a device that somebody else had filled. So nothing is left out for ever.
It is tried again two calls later, and where that was in vain after twice as many, up to `_MOST`.

Tensors of PyTorch of which a device has a copy: fed from there as long as they are what was copied, bit for bit.

PyTorch, numpy and whoever knows an address may write to a tensor, and not all of them tell. So nothing is concluded
from counters: beside the copy on the device stands one on the host, and the tensor is compared with it, whole, each
time that it is fed. What differs is copied anew. This reads memory of the host, at its speed, where a copy would pass a
bus. A copy is thus a guess at what a tensor may hold, found by its address, and never taken without a look. That makes
simple what else were not: a result that PyTorch is about to write into a parameter is noted for the parameter before.

Copied, and compared, is what comes again: parameters, results that are fed back, and a tensor that comes to the same
input of a session twice in a row. What differed a few times in a row is no longer kept. A copy goes with the tensor's
memory, and before that with its owner: a parameter, a tensor that a graph writes into, and for others an `Occurrence`,
of which a session has few. So what is kept is bounded by what a model and its graphs have, not by what they are fed.
What refers to owners and memory runs no Python when they go; devices free their memory when the next one asks for some.

Runs of a region whose session has a device with memory of its own: what need not pass its border stays there.

1. A result that only other graphs of ours read is a `Resident` tensor: it comes to the host if somebody else reads it.
2. Where parameters live on a device (`resident_tensors.py`), so do their gradients, and what is written into
parameters, buffers
   and the state of optimizers.
3. Any other result that a person may read comes to the host, and stays on the device as well where it is fed back:
   gradients, for the step of an optimizer, and what is written into an input (weights, the state of optimizers and of
   batch normalization). That nobody feeds it is learnt from the first calls.
4. An input is fed from the device where it is what was copied there: parameters, results that
   were noted, and a tensor that came to the same place in the call before. A batch is another each time, and passes.
5. What gains nothing there is left out, and what a device has no room for; both are tried again.

So a step of training moves the batch and what PyTorch has changed to the device, and what a person may read back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from nnadapter.session.session import InferenceSession
from nnadapter.torch.regions import Roles, Settings
from nnadapter.torch.resident_tensors import Array, Resident, Results

_FIRST, _MOST = 2, 1024


class Trials:
    """What is tried. Safe to use from several threads: who is late tries once more."""

    def __init__(self, places: Collection[int]) -> None:
        """Take the places of results that may stay on the device."""
        self._places = frozenset(places)
        self.staying = self._places
        """Places of results that stay."""
        self.passing: frozenset[str] = frozenset()
        """Inputs that pass, as no step takes them from the device."""
        self.is_crowded = False
        """The device had no room when it was last tried."""
        self._calls = 0  # until all is tried again; 0 while nothing is left out
        self._next = _FIRST

    def begin(self) -> None:
        """Begin a call."""
        self._calls = max(self._calls - 1, 0)
        if not self._calls:
            self.staying, self.passing, self.is_crowded = self._places, frozenset(), False

    def leave_out(self, places: Collection[int], names: Collection[str]) -> None:
        """End a call, in which these results and inputs gained nothing."""
        self.staying, self.passing = self.staying.difference(places), self.passing.union(names)
        if places or names:
            self._wait()
        elif not self._calls:
            self._next = _FIRST

    def crowd(self) -> None:
        """Let no result stay, as the device has no room."""
        self.staying, self.is_crowded = frozenset(), True
        self._wait()

    def never(self, place: int) -> None:
        """Let a result stay no more, and do not try it again."""
        self._places, self.staying = self._places - {place}, self.staying - {place}

    def _wait(self) -> None:
        if not self._calls:
            self._calls, self._next = self._next, min(2 * self._next, _MOST)


def crossing(session: InferenceSession) -> tuple[int, int] | None:
    """Return the bytes that the plan of a session copies to such devices and back; None if sizes are not known.

    Where no step is on such a device, nothing is copied, whatever the session is fed.
    """
    steps = [step for step in session.report().boundaries.operations if step.kind == "transfer"]
    owning = {name.partition(":")[0] for name in session.devices if has_memory(name)}
    if any(step.nbytes is None for step in steps):
        return None
    into = sum(step.nbytes or 0 for step in steps if step.target.target in owning)
    return into, sum(step.nbytes or 0 for step in steps if step.source.target in owning)


_MOST_MISSES = 4
"""How often in a row a tensor may differ before it is no longer kept."""
_BITS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32), 8: (torch.int64, np.int64)}
"""By bytes of an element, as what it is compared: NaN is equal to itself, and 0 is not -0."""
_Key = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]
"""Address, data type, sizes, strides."""


class Occurrence:
    """A tensor at a place of a session, where it came or was made; a copy of it goes with this."""

    __slots__ = ("__weakref__", "_key", "_memory", "was_fed")

    def __init__(self, tensor: torch.Tensor) -> None:
        """Take a tensor, which this does not keep alive."""
        self._key, self._memory = _key(tensor), weakref.ref(tensor.untyped_storage())
        self.was_fed = False
        """The copy was."""

    def matches(self, tensor: torch.Tensor) -> bool:
        """Whether it is this tensor: the same piece of the same memory."""
        return self._key == _key(tensor) and self._memory() is tensor.untyped_storage()


@dataclass(eq=False, slots=True)
class CachedCopies:
    """What is known of a piece of memory that was fed."""

    memory: weakref.ref[Any]
    owner: weakref.ref[Any]
    """What this goes with."""
    copies: Copies | None = None
    """What it may hold, on the host and on devices."""
    missed: int = 0
    """How often in a row it held something else."""


class CopyCache:
    """What is known of tensors. Safe to use from several threads: who is late copies once more."""

    def __init__(self) -> None:
        self._known: dict[_Key, CachedCopies] = {}

    def __len__(self) -> int:
        """Of how many tensors there is a copy."""
        return sum(entry.copies is not None for entry in list(self._known.values()))

    def fed(self, tensor: torch.Tensor, array: Array, owner: object | None) -> Copies | None:
        """Return what a device may compute with in a tensor's place; None if it is not kept.

        Args:
            tensor: what is fed.
            array: the same, in the same memory.
            owner: what a copy goes with; None where it comes for the first time, and none is to be made.
        """
        if tensor.is_neg():  # what lies in memory is not what it holds
            return None
        key = _key(tensor)
        entry = self._of(key, tensor)
        copies = None if entry is None else entry.copies  # read once: another thread may note others meanwhile
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
        """Note what a tensor holds, or is about to hold: of its data type and shape.

        Args:
            tensor: it.
            copies: what it holds.
            owner: what the copies go with.
        """
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
        return weakref.ref(referent, partial(self._known.pop, key))  # of C: a finalizer runs no Python

    def forget(self) -> None:
        """Let go of all copies: who needs them makes them again."""
        self._known.clear()

    def release(self, unused: Iterable[Copies]) -> None:
        """Let go of these copies."""
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
"""Those of the process: models share weights, and a step of an optimizer reads what a backward graph made."""


_CALLS_BEFORE_LEAVING = 3
"""After how many calls a result that was never fed back does not stay any more."""
Fed = tuple[tuple[str, int, Callable[[Any], Any]], ...]


class TransferredBytes(NamedTuple):
    """Bytes of one call."""

    input_bytes: int
    """Fed to the session, wherever it lay."""
    output_bytes: int
    """What the session gave, wherever it lies."""
    to_device: int
    """Copied from the host to devices."""
    to_host: int
    """Copied from devices to the host."""


def added(counts: Iterable[TransferredBytes]) -> TransferredBytes:
    """Return what calls of several regions moved in all."""
    return TransferredBytes(*map(sum, zip(TransferredBytes(0, 0, 0, 0), *counts, strict=True)))


def owning_device(session: InferenceSession) -> str:
    """Return the first device of a session that has memory of its own; empty if none has."""
    return next(filter(_owns, session.devices), "")


def owns_memory(settings: Settings) -> bool:
    """Return whether sessions that are made with these settings have a device with memory of its own."""
    return any(_owns(canonical(name)) for name in named_requests(settings.devices))


def _owns(device: str) -> bool:
    return device != CPU and has_memory(device)


class ResidentRunner:
    """Runs a session. Safe to use from several threads."""

    def __init__(
        self, session: InferenceSession, device: str, fed: Fed, outputs: Mapping[str, torch.dtype], roles: Roles
    ) -> None:
        """Take a session.

        Args:
            session: it.
            device: that has memory of its own.
            fed: for each input its name, its place among the region's inputs, and what makes an array of it.
            outputs: names of the results, in order, and their data types.
            roles: of the results.
        """
        self._moved = TransferredBytes(0, 0, 0, 0)
        self._is_apart = False  # the last run computed from arrays into arrays, and noted no transfers
        self._session, self._device, self._fed, self._outputs = session, device, fed, tuple(outputs)
        self._dtypes = tuple(outputs.values())
        self._roles, self._trials = roles, Trials(roles.resident_results)
        self._came: dict[str, Occurrence] = {}  # what came to each input last
        self._waiting: dict[
            int, tuple[Occurrence, ...]
        ] = {}  # what results that may be fed back were, and nobody fed yet

    @property
    def is_crowded(self) -> bool:
        """Whether the device had no room when it was last tried."""
        return self._trials.is_crowded

    @property
    def transferred_bytes(self) -> TransferredBytes:
        """By the last call."""
        crossed = crossing(self._session) if self._is_apart else None
        return self._moved._replace(to_device=crossed[0], to_host=crossed[1]) if crossed else self._moved

    def run(self, inputs: Sequence[Any], results: Results) -> tuple[Any, ...]:
        """Run the session.

        Args:
            inputs: of the region.
            results: makes tensors of what the session gave.
        """
        self._trials.begin()
        feeds = {name: self._feed(name, inputs[place], convert) for name, place, convert in self._fed}
        try:
            values = self._run(feeds)
        except OutOfMemoryError:  # what stays takes room; without it, the driver sees to its memory
            COPY_CACHE.forget()
            self._trials.crowd()
            values = self._run(feeds)
        tensors = results([self._output_contents(place, value, inputs) for place, value in enumerate(values)], inputs)
        self._note(tensors, values, inputs)
        return tuple(
            self._lying(tensor, dtype) if type(tensor) is Copies else tensor
            for tensor, dtype in zip(tensors, self._dtypes, strict=True)
        )

    def _lying(self, copies: Copies, dtype: torch.dtype) -> torch.Tensor:
        """A tensor that lies on the device; a plain one where PyTorch captures backward graphs as they run."""
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
        """What holds a tensor that came to an input in the call before; copies of what came instead of it go."""
        occurrence = self._came.get(name)
        if occurrence is not None and occurrence.matches(tensor):
            return occurrence
        self._came[name] = Occurrence(tensor)
        return None

    def _run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """What the session gives: arrays, and `Copies` of what stays."""
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
        """Leave out what gains nothing: results that were brought to the device, inputs that were not."""
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
        """What tensors are made of: an array of the caller's own, or `Copies` of what nobody reads there."""
        if self._lies(place, inputs):
            return value if type(value) is Copies else Copies(value)
        if type(value) is not Copies or place in self._roles.hidden:
            return value
        if value.has_array:
            return value.own_array()
        transfers: list[Transfer] = []
        array = value.host(self._outputs[place], transfers)
        self._read(sum(transfer.nbytes for transfer in transfers))
        return array.copy()

    def _lies(self, place: int, inputs: Sequence[Any]) -> bool:
        """Whether a result that a person has comes as a tensor on a device."""
        target = self._roles.written.get(place)
        return place in self._roles.device_tensor_results if target is None else type(inputs[target]) is Resident

    def _note(self, tensors: Sequence[Any], values: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Note what lies on the device of results that a person reads, for who is fed them."""
        for place, value in enumerate(values):
            if type(value) is not Copies or place in self._roles.hidden or self._lies(place, inputs):
                continue
            if place in self._roles.written:
                target = inputs[self._roles.written[place]]
                COPY_CACHE.note(target, value, target)
                continue
            if place in self._trials.staying:
                self._wait(place, tensors[place], value)

    def _wait(self, place: int, tensor: torch.Tensor, value: Copies) -> None:
        """Note a result that may be fed back; what came before it goes when it was, or has not been for long."""
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
        """Count a run; one that is apart computed from arrays, noted no transfers, and copied what passed borders."""
        input_bytes, output_bytes = sum(value.nbytes for value in feeds.values()), sum(value.nbytes for value in values)
        if is_apart and not all(type(value) is Copies and value.is_on(self._device) for value in feeds.values()):
            self._moved, self._is_apart = TransferredBytes(input_bytes, output_bytes, input_bytes, output_bytes), True
            return
        to_host = sum(transfer.nbytes for transfer in transfers if transfer.target == HOST)
        to_device = sum(transfer.nbytes for transfer in transfers if transfer.target != HOST)
        self._moved, self._is_apart = TransferredBytes(input_bytes, output_bytes, to_device, to_host), False

    def _read(self, nbytes: int) -> None:
        """Count what the host reads of results after the run."""
        self._moved = self._moved._replace(to_host=self._moved.to_host + nbytes)
