"""Files whose writers are killed at any moment: old or new contents, nothing between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from random import Random

import pytest

from nnadapter.store import Container

WRITER = """
import itertools, sys
from nnadapter.store.container import write_container
print("ready", flush=True)
for number in itertools.count():
    text = b"%08d" % number
    write_container(sys.argv[1], lambda writer: [writer.add("x", text * 40_000), writer.add("n", text)])
"""


def check_kills(folder, kills, seed):
    path, random, seen = folder / "f", Random(seed), []
    for _ in range(kills):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
        writer.stdout.readline()
        time.sleep(random.random() / 20)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        if path.exists():
            container = Container.open(path)
            container.verify()
            (number,) = (bytes(container.contents(each)) for each in (1,))
            assert bytes(container.contents(0)) == number * 40_000
            seen.append(int(number))
    return seen


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_killed_writer_leaves_a_complete_file(tmp_path):
    assert check_kills(tmp_path, 6, 0)


@pytest.mark.sweep
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_many_killed_writers_leave_complete_files(tmp_path):
    assert check_kills(tmp_path, 200, 1)
