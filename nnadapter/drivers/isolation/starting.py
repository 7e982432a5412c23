"""Starts the process of a device, and has it end with this one.

It is started anew, never forked: with this one's module path as it is (a folder from which this one imports nothing,
such as the current one, is none of it), and nothing else of its state. It keeps one end of a pair of sockets over which
nothing is ever said. When the other end is gone, this process is, and the system kills it, whatever its driver does at
the time (`worker.py`).
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from typing import BinaryIO, NamedTuple

from nnadapter.drivers.isolation.channel import Channel, End, ends, pair
from nnadapter.errors import DeviceUnavailableError

_BEGIN = "import sys; sys.path[:] = sys.argv[3:]; from nnadapter.drivers.isolation.worker import main; main()"


class Started(NamedTuple):
    """A process, as it begins."""

    process: subprocess.Popen[bytes]
    door: Channel
    """Takes new channels."""
    lifeline: End


def start(output: BinaryIO) -> Started:
    """Start a process.

    Args:
        output: takes what it prints.

    Raises:
        DeviceUnavailableError: it does not start.
    """
    with ExitStack() as stack:
        try:
            door, other_door = pair()
            stack.callback(door.close)
            lifeline, other_lifeline = ends()
            stack.callback(lifeline.close)
            process = _process(output, other_door, other_lifeline)
        except (OSError, ValueError) as error:
            raise DeviceUnavailableError(f"the process of a device did not start: {error}") from error
        stack.pop_all()
    return Started(process, door, lifeline)


def _process(output: BinaryIO, door: End, lifeline: End) -> subprocess.Popen[bytes]:
    """The process, which gets these ends."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    with door, lifeline:
        descriptors = door.fileno(), lifeline.fileno()
        return subprocess.Popen(
            [sys.executable or "python", "-X", "faulthandler", "-c", _BEGIN, *map(str, descriptors), *path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            process_group=0,  # an interrupt from the keyboard is this process's alone
        )
