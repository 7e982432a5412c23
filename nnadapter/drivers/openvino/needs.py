"""What a kind of device needs of the machine, before anything that is installed can help."""

from __future__ import annotations

from nnadapter.drivers.hardware import HardwareNeeds, Machine

_SYSTEMS = ("Linux", "Windows")
_NEEDS = {
    "CPU": HardwareNeeds((*_SYSTEMS, "Darwin")),
    "GPU": HardwareNeeds(_SYSTEMS, ("sys/class/drm/*/device/vendor",), "0x8086"),
    "NPU": HardwareNeeds(_SYSTEMS, ("sys/class/accel/*/device/vendor",), "0x8086"),
}
"""0x8086 is Intel's number as a vendor."""


def is_possible(kind: str) -> bool:
    """Whether this machine has what a kind of device needs."""
    return _NEEDS[kind].met_by(Machine())
