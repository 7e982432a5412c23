"""Networks saved and run by Paddle, once for all processes of a test run; no test imports Paddle."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Return a folder with a subfolder for each network of `networks.py`, and a cache of conversions."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if base.name.startswith("popen-") else base) / "paddle networks"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "done").exists():
            script = Path(__file__).with_name("networks.py")
            subprocess.run([sys.executable, str(script), str(root)], check=True, capture_output=True)
            (root / "done").touch()
    return root
