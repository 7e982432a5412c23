"""Device-resident values between steps, and outputs of a run as the caller gets them.

Values that stay where they were made: steps that compute from memory of their device into memory of it.

A device with memory of its own would get every input of a segment from the host, and give every output back to it. So:

1. What a step of such a device makes stays there. It comes to the host once, when somebody there reads it.
2. What several segments of a device read is brought to it once.
3. Only steps do so for which it saves a copy: what they make is read by a later step of their device, or what they read
   was made by an earlier one, or is read by another one. And those that are given a value that lies on their device,
   or shall stay there, or make an output that shall stay on one.

A driver that cannot, or that has no room, computes from arrays and into arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.drivers.boundary import OutputCheck, check_tensors
from nnadapter.drivers.interface import DeviceTensor
from nnadapter.drivers.tensor_copies import TENSORS, Copies, Transfer, bind_to_owner, can_lie_on_devices
from nnadapter.errors import OutOfMemoryError
from nnadapter.planning.overlap import saving_steps
from partition.plan import Plan

Compute = Callable[[Sequence[DeviceTensor]], Sequence[DeviceTensor] | None]


@dataclass(eq=False, slots=True)
class Residence:
    """What a step may do in its device's own memory."""

    device: str
    saves: bool
    """It saves a copy, whatever the caller binds."""
    inputs: tuple[str, ...]
    """Names of what the step reads."""
    outputs: tuple[str, ...]
    slots: tuple[int, ...]
    """Of the inputs."""
    expected: OutputCheck
    last: frozenset[int] = frozenset()
    """Slots of inputs of the model that no other step reads, and that are no outputs: they may be given up here."""
    able: bool = field(default=True)
    """The driver did not say that it cannot."""
    enqueues: bool = field(default=True)
    """Nor that it cannot do so as work of a stream."""

    def compute(
        self,
        compute: Compute,
        values: list[Any],
        made: list[Transfer],
        stays: Mapping[str, str],
        *,
        is_work_of_stream: bool = False,
    ) -> Sequence[Copies] | None:
        """Run a step in memory of its device.

        Args:
            compute: runs its program.
            values: of the run, by slot; what is brought to the device is noted there, for the steps that come.
            made: gets the transfers.
            stays: inputs and outputs of the model that shall stay on devices, and on which.
            is_work_of_stream: `compute` enqueues it.

        Returns:
            What it made; None, and nothing was computed, where arrays do better or the driver cannot.
        """
        inputs = [values[slot] for slot in self.slots]
        if not self.able or not (
            self.saves
            or any(type(value) is Copies and value.is_on(self.device) for value in inputs)
            or any(stays.get(name) == self.device for name in (*self.inputs, *self.outputs))
        ):
            return None
        if not all(map(can_lie_on_devices, inputs)):
            return None
        TENSORS.free_orphans()
        try:
            tensors = [
                self._tensor(_copies(values, slot), name, slot, made)
                for slot, name in zip(self.slots, self.inputs, strict=True)
            ]
            computed = compute(tensors)
        except OutOfMemoryError:
            return None
        if computed is None:
            self.able, self.enqueues = self.able and is_work_of_stream, self.enqueues and not is_work_of_stream
            return None
        results = [bind_to_owner(tensor) if isinstance(tensor, DeviceTensor) else tensor for tensor in computed]
        return [
            Copies(None, {self.device: result})
            for result in check_tensors(results, self.outputs, self.expected, tensors)
        ]

    def _tensor(self, copies: Copies, name: str, slot: int, made: list[Transfer]) -> DeviceTensor:
        tensor = copies.on(self.device, name, made)
        if not copies.is_donated or slot not in self.last or self.slots.count(slot) > 1:
            return tensor
        return replace(tensor, is_donated=True)


def _copies(values: list[Any], slot: int) -> Copies:
    value = values[slot]
    if type(value) is not Copies:
        value = values[slot] = Copies(value)
    return value


def delivered(copies: Copies, name: str, device: str, made: list[Transfer]) -> Copies:
    """An output as its caller wants to keep it: on that device if it has memory of its own.

    Args:
        copies: the output.
        name: its name.
        device: where; empty for wherever it lies.
        made: gets the transfer, if there is one.
    """
    if device and not copies.is_on(device) and has_memory(device) and can_lie_on_devices(copies):
        copies.on(device, name, made)
    return copies


def has_memory(device: str) -> bool:
    """Whether a device has memory of its own."""
    from nnadapter.drivers.boundary import has_of  # drivers are known where a device is named
    from nnadapter.drivers.registry import open_device

    return has_of(device, open_device(device), "has_memory")


def residences(
    plan: Plan,
    owning: Set[str],
    slots: Mapping[str, int],
    reads: Mapping[int, tuple[str, ...]],
    expected: Callable[[Sequence[str]], OutputCheck],
) -> dict[int, Residence]:
    """Return per segment what it may do in its device's own memory, for those whose devices have some.

    Args:
        plan: the plan.
        owning: devices that have memory of their own.
        slots: of values, by name.
        reads: per segment, names of what its program reads.
        expected: what is known of outputs of these names.
    """
    saving = saving_steps(plan, owning)
    readers = Counter(name for step in plan.steps for name in step.inputs)
    given_up = {name for name in plan.graph.inputs if readers[name] == 1} - set(plan.graph.outputs)
    return {
        step.segment: Residence(
            device=step.device,
            saves=step.segment in saving,
            inputs=reads[step.segment],
            outputs=step.outputs,
            slots=tuple(slots[name] for name in reads[step.segment]),
            expected=expected(step.outputs),
            last=frozenset(slots[name] for name in step.inputs if name in given_up),
        )
        for step in plan.steps
        if step.device in owning
    }


Kept = Mapping[str, str]
"""Inputs and outputs that stay, and the devices where they shall lie; empty for where they do."""
NOTHING_KEPT: Kept = MappingProxyType({})


def output_of(value: Any, name: str, feeds: Mapping[str, Any], kept: Kept | None, made: list[Transfer]) -> Any:
    """An output as its caller wants it: an array of its own, or kept where it lies or shall lie."""
    fed = name in feeds
    if kept is not None and name in kept and isinstance(value, (np.ndarray, Copies)):
        copies = value if isinstance(value, Copies) else Copies(value)
        is_callers = isinstance(feeds.get(name), np.ndarray)
        copies.is_shared |= fed
        return delivered(copies.without_array() if is_callers else copies, name, kept[name], made)
    if type(value) is Copies:
        return own_value(value.host(name, made), fed)
    return own_value(value, fed)


def own_value(value: Any, fed: bool) -> Any:
    """An output that nobody else holds: constants and inputs that are outputs as well are copied."""
    if isinstance(value, np.ndarray) and (fed or not value.flags.writeable):
        return value.copy()
    return value
