"""Where a tensor lives."""

from __future__ import annotations

from dataclasses import dataclass

from nnadapter.drivers.selection import CPU, canonical
from nnadapter.errors import InvalidInputError
from nnadapter.options import default_devices


@dataclass(frozen=True, slots=True)
class Place:
    """A device, by its name: `fake_npu`, or `fake_npu:1` where a driver has several. Source: Paddle's Place."""

    device: str

    @property
    def is_host(self) -> bool:
        """It is the host, where numpy computes."""
        return self.device == CPU

    def __repr__(self) -> str:
        """As in `Place(fake_npu:0)`."""
        return f"Place({self.device if ':' in self.device else f'{self.device}:0'})"


def place_of(device: str | Place | None) -> Place:
    """Return the place that a person means; None is the process's default device (`nnadapter.set_device`).

    Raises:
        InvalidOptionError: it is no name of a device.
    """
    if isinstance(device, Place):
        return device
    return Place(canonical(default_devices()[0] if device is None else device))


def common_place(places: list[Place]) -> Place:
    """Return the one place of several tensors.

    Raises:
        InvalidInputError: they live in different ones.
    """
    first = places[0]
    for other in places:
        if other != first:
            raise InvalidInputError(
                f"one tensor lives on {first.device!r}, another on {other.device!r}; an operation computes on one "
                f"device, so move one with .to({first.device!r})"
            )
    return first
