"""faulty: a device around any other, which makes the faults that a script asks for.

Read it in this order: kinds (the table of faults), script and reading (what a person writes), subjects (what calls are
about), faults (which are due) with log, acting, answers and results (how they are made), driver, context, program,
execution. docs/faults.md says what it is for.
"""

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
