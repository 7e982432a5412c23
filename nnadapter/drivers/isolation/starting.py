"""Starts the process of a device, and has it end with this one.

It is started anew, never forked: with this one's module path, and nothing else of its state. It keeps one end of a
pair of sockets over which nothing is ever said. When the other end is gone, this process is, and the system kills it,
whatever its driver does at the time (`worker.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import BinaryIO, NamedTuple

from nnadapter.drivers.isolation.channel import Channel, End, ends, pair
from nnadapter.errors import DeviceUnavailableError

_WORKER = "nnadapter.drivers.isolation.worker"


class Started(NamedTuple):
    """A process, as it begins."""

    process: subprocess.Popen[bytes]
    door: Channel
    """Takes new channels."""
    lifeline: End


def start(said: BinaryIO) -> Started:
    """Start a process.

    Args:
        said: takes what it prints.

    Raises:
        DeviceUnavailableError: it does not start.
    """
    door, other_door = pair()
    lifeline, other_lifeline = ends()
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)  # noqa: PTH109  the text is what the variable holds
    given = other_door.fileno(), other_lifeline.fileno()
    try:
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", _WORKER, *map(str, given)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=given,
            process_group=0,  # an interrupt from the keyboard is this process's alone
        )
    except (OSError, ValueError) as error:
        door.close()
        lifeline.close()
        raise DeviceUnavailableError(f"the process of a device did not start: {error}") from error
    finally:
        other_door.close()
        other_lifeline.close()
    return Started(process, door, lifeline)
