"""The driver and its devices: each is around another one, whose name stands behind the colon."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from nnadapter.drivers.capability import Capability, DeviceInfo, DeviceRole, MemoryStatistics, Option, OptionValues
from nnadapter.drivers.device_tensors import DeviceTensor, Memory
from nnadapter.drivers.faulty.acting import act
from nnadapter.drivers.faulty.context import FaultyContext
from nnadapter.drivers.faulty.faults import Faults
from nnadapter.drivers.faulty.kinds import Kind, Phase
from nnadapter.drivers.faulty.reading import VARIABLE, read_script, script_in
from nnadapter.drivers.faulty.script import Script
from nnadapter.drivers.interface import Context, Device, Driver
from nnadapter.drivers.registry import open_device
from nnadapter.drivers.streams import Event, Stream
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError, FaultScriptError

_EXAMPLE = "fake_npu"
OPTIONS = (
    Option(
        name="script",
        default="",
        help=f"Which faults come when: a TOML file, or its text (docs/faults.md); else what {VARIABLE} names.",
        affects_speed=False,
    ),
    Option(
        name="seed",
        default=-1,
        minimum=-1,
        help="Decides what the script leaves to chance; -1 for the seed that the script has.",
        affects_speed=False,
    ),
)
"""What the device is told beside the options of the one inside."""


class FaultyDriver(Driver):
    """Makes faults on demand, around any other device."""

    def open(self, device_id: str) -> Device:
        """See `Driver.open`; the device inside is opened, and told the faults of this phase that the environment names.

        Raises:
            DeviceNotFoundError: no device is named, or one that there is not.
            DeviceUnavailableError: it cannot be used here, or has an option that is called like one of this device.
        """
        if device_id in ("", "0"):
            raise DeviceNotFoundError(
                f"faulty is around another device: name that behind a colon, as in 'faulty:{_EXAMPLE}' (docs/faults.md)"
            )
        script = script_in(os.environ)
        act(Faults(script).moment(Phase.OPEN))
        return FaultyDevice(device_id, open_device(device_id))

    def devices(self) -> Sequence[DeviceInfo]:
        """See `Driver.devices`: one of the many that there are."""
        return (
            DeviceInfo(
                name=f"faulty:{_EXAMPLE}",
                vendor="nnadapter",
                sub_type="with faults on demand; faulty:NAME is so around any device (docs/faults.md)",
                version="1.0",
            ),
        )


class FaultyDevice(Device):
    """A device around another one.

    Args:
        name: of the one inside.
        inner: the one inside.

    Raises:
        DeviceUnavailableError: it has an option that is called like one of this device.
    """

    def __init__(self, name: str, inner: Device) -> None:
        self._inner = inner
        self._writes_inputs = False
        conflicts = {option.name for option in inner.capability.options} & {option.name for option in OPTIONS}
        if conflicts:
            raise DeviceUnavailableError(
                f"device 'faulty:{name}' cannot be used: {name!r} has options of its own that are called "
                f"{', '.join(map(repr, sorted(conflicts)))}"
            )

    @cached_property
    def capability(self) -> Capability:
        """See `Device.capability`: that of the device inside; whatever that is, this one takes what it can."""
        inner = self._inner.capability
        return replace(inner, role=DeviceRole.ACCELERATOR, options=(*inner.options, *OPTIONS))

    def create_context(self, options: OptionValues) -> Context:
        """See `Device.create_context`; without a script it is the context of the device inside.

        Raises:
            FaultScriptError: the script cannot be used.
        """
        faulty_options = {option.name: options[option.name] for option in OPTIONS}
        inner = {name: value for name, value in options.items() if name not in faulty_options}
        script = _script_of(str(faulty_options["script"]))
        if not script.faults:
            return self._inner.create_context(inner)
        self._writes_inputs |= any(fault.kind is Kind.WRITES_INPUTS for _, fault in script)
        faults = Faults(script, int(faulty_options["seed"]))  # type: ignore[arg-type]  # a number, as the table says
        act(faults.moment(Phase.CONTEXT))
        return FaultyContext(self._inner.create_context(inner), faults)

    @property
    def has_memory(self) -> bool:
        """See `Device.has_memory`."""
        return self._inner.has_memory

    def allocate(self, nbytes: int) -> Memory:
        """See `Device.allocate`."""
        return self._inner.allocate(nbytes)

    def from_dlpack(self, tensor: Any) -> DeviceTensor | None:
        """See `Device.from_dlpack`."""
        return self._inner.from_dlpack(tensor)

    @property
    def has_raw_inputs(self) -> bool:
        """See `Device.has_raw_inputs`: so has one that was told to write there, as drivers in C can."""
        return self._inner.has_raw_inputs or self._writes_inputs

    @property
    def has_streams(self) -> bool:
        """See `Device.has_streams`."""
        return self._inner.has_streams

    def create_stream(self) -> Stream:
        """See `Device.create_stream`."""
        return self._inner.create_stream()

    def create_event(self) -> Event:
        """See `Device.create_event`."""
        return self._inner.create_event()

    def memory_statistics(self) -> MemoryStatistics | None:
        """See `Device.memory_statistics`."""
        return self._inner.memory_statistics()

    def close(self) -> None:
        """See `Device.close`: the device inside may be others', too, and stays open."""


def _script_of(option: str) -> Script:
    """The script that an option names, or else the environment.

    Raises:
        FaultScriptError: it cannot be used, or an option's has faults of opening, which came before options are known.
    """
    if not option:
        return script_in(os.environ)
    script = read_script(option)
    for number, fault in script:
        if fault.phase is Phase.OPEN:
            raise FaultScriptError(
                f"script of faults, fault {number}, key 'phase': a device is opened before it is told its options; "
                f"name the script in {VARIABLE} for faults of phase 'open'",
                entry=f"fault {number}",
                key="phase",
            )
    return script
