"""Whether a program in a file fits here."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.compiled_models.devices import FileDevice
from nnadapter.drivers.border import ask_compatibility
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import Compatibility
from partition.verdict import Unsupported

_FITTING = frozenset((Compatibility.SAME, Compatibility.COMPATIBLE))
_WHY = {
    Compatibility.NO: "its program is another device's, or another version of its driver wrote it",
    Compatibility.RECOMPILE: "driver, device or options are others",
}


def reason_against(device: FileDevice, blob: memoryview, about: tuple[int, Sequence[str]]) -> str:
    """Return why a device would not run a program as it is, by what its driver says of the header; empty if it would.

    Where the driver does not tell, the host compares versions and devices.

    Args:
        device: of the file.
        blob: the program.
        about: the segment, and names of its nodes.
    """
    says = named_call(device.name, "check_blob", *about)(ask_compatibility, device.context, blob)
    if isinstance(says, Unsupported):
        return says.detail
    if says is None:
        says = Compatibility.SAME if device.is_as_kept else Compatibility.RECOMPILE
    return "" if says in _FITTING else _WHY[says]
