"""Start of Ray on this machine, with a substitute that handles SIGTERM as Ray does."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, signal, subprocess, sys, time, types

def init(**settings):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGTERM, ctypes.cast(libc.abort, ctypes.c_void_p))
    mask = "import signal; print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)"
    subprocess.run([sys.executable, "-c", mask], preexec_fn=lambda: None, check=True)
    print("starting", flush=True)
    for _ in range({turns}):
        time.sleep(0.02)

sys.modules["ray"] = types.SimpleNamespace(init=init, is_initialized=lambda: False)
from nnadapter.ray.cluster import start_if_needed
{before}
start_if_needed()
print("started", flush=True)
time.sleep(30)
"""


def ended(turns, before=""):
    """Send SIGTERM while Ray starts, and return the exit code and the output."""
    script = PROGRAM.format(turns=turns, before=before)
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert [child.stdout.readline(), child.stdout.readline()] == ["False\n", "starting\n"], "processes take SIGTERM"
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=20)
    return child.returncode, out, err


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="signals of Linux")
def test_termination_while_ray_starts_prints_no_traceback():
    assert ended(turns=500) == (143, "", "")


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="signals of Linux")
def test_signal_handler_of_the_program_is_called_once():
    handler = "signal.signal(signal.SIGTERM, lambda *_: (print('stopping'), sys.exit(3)))"
    assert ended(500, handler) == (3, "stopping\n", "")
