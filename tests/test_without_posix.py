"""Basic use without Python's POSIX features, as on Windows: it works, or the error gives the reason."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest
from onnx import parser

from tests.models import CHAIN

_WITHOUT = """
import asyncio, os, signal, socket, sys, tempfile, time
import click, numpy, onnx, onnxruntime, rich.console, rich.progress, rich.table, scipy.sparse.csgraph  # ask the system
import concurrent.futures, multiprocessing, subprocess
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
GONE = {
    os: "pread pwrite fork forkpty getuid geteuid sched_getaffinity sched_setaffinity register_at_fork mkfifo killpg "
        "posix_fallocate O_DIRECTORY O_NOFOLLOW O_CLOEXEC O_NONBLOCK setsid getpgid uname sysconf getloadavg fchmod "
        "chown statvfs waitid wait wait4 WNOHANG memfd_create eventfd sendfile setpriority getpriority fdatasync lockf",
    signal: "SIGKILL SIGALRM SIGUSR1 SIGHUP SIGCHLD SIGPIPE SIGSTOP SIGQUIT setitimer alarm pause sigwait "
            "pthread_sigmask pthread_kill SIG_BLOCK SIG_SETMASK ITIMER_REAL",
    socket: "AF_UNIX send_fds recv_fds",
    time: "clock_gettime pthread_getcpuclockid CLOCK_MONOTONIC",
}
for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"
folder, model = sys.argv[1:3]
os.environ["NNADAPTER_CACHE_DIR"] = folder
x = numpy.array([[-1, 0, 2], [3, -4, 5]], numpy.float32)
expected = numpy.maximum(x, 0) + numpy.exp(-numpy.maximum(x, 0))
import nnadapter as nna

def check(session):
    with session:
        numpy.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-6)

for device in ("cpu", "fake_npu", "reference"):
    check(nna.InferenceSession(model, devices=device))
for _ in range(2):  # the second time its plan is found
    check(nna.InferenceSession(model, devices="fake_npu", options=nna.Options(cache_dir=folder)))
nna.compile(model, folder + "/model.nna", devices="fake_npu")
check(nna.InferenceSession(folder + "/model.nna"))
check(nna.InferenceSession(model, devices="fake_npu", options=nna.Options(policy="measured")))
check(nna.InferenceSession(model, devices="fake_npu", options=nna.Options(background=True)))
options = nna.Options(deadline_s=60, trace=folder + "/trace.json")
with nna.InferenceSession(model, devices="fake_npu", options=options) as session:
    assert len(list(session.stream([{"x": x}] * 5))) == 5
try:
    nna.InferenceSession(model, devices=[("fake_npu", {"isolate": True})])
except nna.errors.DeviceUnavailableError as error:
    assert "this system cannot pass file descriptors between processes" in str(error)
else:
    raise AssertionError("a device in a process of its own")

from nnadapter.cli import main
for command in (["devices"], ["report", model, "-d", "fake_npu"], ["run", model, "-d", "fake_npu"]):
    try:
        main(command)
    except SystemExit as ended:
        assert not ended.code, command
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="takes away what is not there")
def test_basic_use_works_without_posix(tmp_path):
    onnx.save(parser.parse_model(CHAIN), tmp_path / "model.onnx")
    own = (sys.executable, "-c", _WITHOUT, str(tmp_path / "cache"), str(tmp_path / "model.onnx"))
    (tmp_path / "cache").mkdir()
    done = subprocess.run(own, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
