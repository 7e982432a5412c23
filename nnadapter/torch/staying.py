"""Runs of a region whose session has a device with memory of its own: what need not pass its border stays there.

1. A result that only other graphs of ours read is a `Resident` tensor: it comes to the host if somebody else reads it.
2. Where parameters live on a device (`living.py`), so do their gradients, and what is written into parameters, buffers
   and the state of optimizers.
3. Any other result that a person may read comes to the host, and stays on the device as well where it is fed back:
   gradients, for the step of an optimizer, and what is written into an input (weights, the state of optimizers and of
   batch normalization). That nobody feeds it is learnt from the first calls.
4. An input is fed from the device where it is what was copied there, see `known_copies.py`: parameters, results that
   were noted, and a tensor that came to the same place in the call before. A batch is another each time, and passes.
5. What gains nothing there is left out, and what a device has no room for; both are tried again (`trials.py`).

So a step of training moves the batch and what PyTorch has changed to the device, and what a person may read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._dynamo import compiled_autograd

from nnadapter.drivers.copies import HOST, Copies, Transfer
from nnadapter.drivers.selection import CPU, canonical, named_requests
from nnadapter.errors import OutOfMemoryError
from nnadapter.inference.session import InferenceSession
from nnadapter.running.device_value import DeviceValue
from nnadapter.running.residence import has_memory
from nnadapter.torch.crossing import crossing
from nnadapter.torch.known_copies import KNOWN, Occurrence
from nnadapter.torch.resident import Resident
from nnadapter.torch.results import Results
from nnadapter.torch.settings import Settings
from nnadapter.torch.trials import Trials
from nnadapter.torch.uses import Roles

_CALLS_BEFORE_LEAVING = 3
"""After how many calls a result that was never fed back does not stay any more."""
Fed = tuple[tuple[str, int, Callable[[Any], Any]], ...]


class TransferredBytes(NamedTuple):
    """Bytes of one call."""

    taken: int
    """Fed to the session, wherever it lay."""
    given: int
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
        self._roles, self._trials = roles, Trials(roles.staying)
        self._came: dict[str, Occurrence] = {}  # what came to each input last
        self._waiting: dict[
            int, tuple[Occurrence, ...]
        ] = {}  # what results that may be fed back were, and nobody fed yet

    @property
    def is_crowded(self) -> bool:
        """Whether the device had no room when it was last tried."""
        return self._trials.is_crowded

    @property
    def moved(self) -> TransferredBytes:
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
            KNOWN.forget()
            self._trials.crowd()
            values = self._run(feeds)
        tensors = results([self._given(place, value, inputs) for place, value in enumerate(values)], inputs)
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
            value = value.held.on_host(value.dtype)
        array = convert(value)
        is_tensor = isinstance(value, torch.Tensor) and array.dtype.itemsize == value.itemsize
        if not is_tensor or name in self._trials.passing:
            return array
        if not isinstance(owner, (torch.nn.Parameter, Resident)):
            owner = self._comes_again(name, value)
        return KNOWN.fed(value, array, owner) or array

    def _comes_again(self, name: str, tensor: torch.Tensor) -> Occurrence | None:
        """What holds a tensor that came to an input in the call before; copies of what came instead of it go."""
        occurrence = self._came.get(name)
        if occurrence is not None and occurrence.holds(tensor):
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
        KNOWN.let_go(unused.values())
        self._trials.leave_out(places, unused)

    def _given(self, place: int, value: Any, inputs: Sequence[Any]) -> Any:
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
        return place in self._roles.lying if target is None else type(inputs[target]) is Resident

    def _note(self, tensors: Sequence[Any], values: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Note what lies on the device of results that a person reads, for who is fed them."""
        for place, value in enumerate(values):
            if type(value) is not Copies or place in self._roles.hidden or self._lies(place, inputs):
                continue
            if place in self._roles.written:
                target = inputs[self._roles.written[place]]
                KNOWN.note(target, value, target)
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
        KNOWN.note(tensor, value, holder)

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
