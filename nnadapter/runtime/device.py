"""A device of this machine, by its name."""

from __future__ import annotations

from typing import Self

from nnadapter.drivers.capability import Capability, MemoryStatistics
from nnadapter.drivers.kept_memory import TENSORS
from nnadapter.drivers.registry import open_device, open_isolated
from nnadapter.drivers.selection import canonical
from nnadapter.errors import FAILURES, DriverError, NNAdapterError, describe
from nnadapter.runtime.handle import Handle


class Device(Handle):
    """One device. It is opened once per process and shared: to close this closes what was made from it, and no more.

    Source: NNAdapterDevice_acquire, _release, _getName.
    """

    def __init__(self, name: str, isolate: bool = False) -> None:
        self._name, self.is_isolated = canonical(name), isolate
        """`is_isolated`: it has a process of its own."""
        self._device = open_isolated(self._name) if isolate else open_device(self._name)
        self._capability = self._device.capability
        super().__init__(None)

    @classmethod
    def acquire(cls, name: str, *, isolate: bool = False) -> Self:
        """Return the device called `name`: `fake_npu`, or `fake_npu:1` where a driver has several.

        Args:
            name: of the device.
            isolate: it has a process of its own, so that a crash of its driver is an error (docs/isolation.md).

        `nnadapter.devices()` lists them all, with the reason where one cannot be used.

        Raises:
            DeviceNotFoundError, DeviceUnavailableError: it does not exist or cannot be used here.
            InvalidOptionError: `name` is no name.
        """
        return cls(name, isolate)

    @property
    def name(self) -> str:
        """What a person writes to choose it."""
        return self._name

    @property
    def capability(self) -> Capability:
        """Its limits, its options, and what it takes, operation by operation."""
        return self._capability

    def memory_statistics(self) -> MemoryStatistics | None:
        """How full its own memory is now; None where it has none, or its driver does not count.

        Raises:
            DriverError: the driver failed.
        """
        try:
            TENSORS.free_gone()
            return self._device.memory_statistics()
        except NNAdapterError:
            raise
        except FAILURES as error:
            raise DriverError(
                f"device {self._name!r} did not tell how full it is: {describe(error)}; report it to the vendor",
                device=self._name,
            ) from error

    def __repr__(self) -> str:
        """The kind and the name."""
        return f"Device({self._name!r})"
