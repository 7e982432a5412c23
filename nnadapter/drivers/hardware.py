"""What a device needs of a machine, and whether a machine has it: known without loading a driver."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path

_LINUX = "Linux"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, as far as devices ask."""

    system: str = field(default_factory=platform.system)
    """As Python's platform module calls it."""
    root: Path = Path("/")
    """Below it lie `dev` and `sys`."""


@dataclass(frozen=True, slots=True)
class HardwareNeeds:
    """What has to be there before anything that is installed can help."""

    systems: tuple[str, ...]
    files: tuple[str, ...] = ()
    """Patterns of paths below the root, of which one is there on Linux; elsewhere the system alone decides."""
    content: str = ""
    """What such a file begins with."""

    def met_by(self, machine: Machine) -> bool:
        """Whether `machine` has it."""
        if machine.system not in self.systems:
            return False
        paths = (path for pattern in self.files for path in machine.root.glob(pattern))
        return machine.system != _LINUX or not self.files or any(map(self._holds, paths))

    def _holds(self, path: Path) -> bool:
        try:
            return not self.content or path.read_text().startswith(self.content)
        except OSError:
            return False
