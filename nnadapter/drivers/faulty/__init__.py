"""Device `faulty`: wraps another device and injects the faults of a script (docs/failures.md)."""

from __future__ import annotations

from nnadapter.drivers.faulty.script import Fault, Kind, Phase, Script, read_script
from nnadapter.process.lazily import lazily

__all__ = ["Fault", "Kind", "Phase", "Script", "read_script"]

__getattr__ = lazily(
    __name__,
    {
        ".driver": "FaultyContext FaultyDevice FaultyExecution FaultyProgram OPTIONS",
        ".faults": "Faults Subject make unwrapped wrapped",
        ".script": "KINDS WRITING script_in",
    },
)
