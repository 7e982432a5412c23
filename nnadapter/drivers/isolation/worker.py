"""The process of a device: it opens one and answers over its channels, until the process that started it ends.

What was standard output goes where standard error does, for drivers that print. The lifeline is a socket at which the
system sends a signal when the other end is gone: it ends this process even while a driver computes in C and holds
Python's lock. Where there is no such signal, a thread looks.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

from nnadapter.drivers.isolation.channel import Channel, from_descriptor
from nnadapter.drivers.isolation.seat import Seat
from nnadapter.drivers.isolation.served import Served


def main() -> None:
    """Serve the device that the first message names; the descriptors of door and lifeline are the first arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    door, lifeline = map(int, sys.argv[1:3])
    end_with(lifeline)
    os.environ.pop("NNADAPTER_ISOLATE", None)
    served = Served()
    # The first channel is this thread's: there are drivers that open a device nowhere else.
    first, entrance = threading.Event(), from_descriptor(door)
    lanes: list[Channel] = []
    threading.Thread(target=_open, args=(entrance, served, lanes, first), daemon=True).start()
    first.wait()
    _serve(lanes.pop(), served)
    threading.Event().wait()


def end_with(lifeline: int) -> None:
    """Have this process end when the other end of a socket is closed."""
    import fcntl

    other = socket.socket(fileno=lifeline)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    # Also where there is a signal: the other end may be gone already.
    threading.Thread(target=_watch, args=(other,), daemon=True).start()


def _watch(lifeline: socket.socket) -> NoReturn:
    lifeline.setblocking(True)
    lifeline.recv(1)
    os._exit(0)


def _open(door: Channel, served: Served, lanes: list[Channel], first: threading.Event) -> None:
    """Serve every channel that comes in."""
    while True:
        try:
            _, descriptors = door.receive_with_descriptors()
        except (OSError, EOFError):
            os._exit(0)
        for descriptor in descriptors:
            channel = from_descriptor(descriptor)
            if not first.is_set():
                lanes.append(channel)
                first.set()
                continue
            threading.Thread(target=_serve, args=(channel, served), daemon=True).start()


def _serve(channel: Channel, served: Served) -> None:
    """Answer what comes over a channel until the other end is closed."""
    seat: Any = Seat(channel, served)
    try:
        while True:
            seat.answer()
    except (OSError, EOFError):
        pass
    finally:
        channel.close()
