"""Cached plans of PyTorch modules and compiled functions, found by another process."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import warnings

import pytest

MODULE = """
import sys, torch, nnadapter as nna
from nnadapter.store.folder import Folder
from pathlib import Path

def module(seed):
    torch.manual_seed(seed)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    return torch.nn.Sequential(*layers).eval()

def session(module, folder):
    with nna.InferenceSession(module, (x,), devices="fake_npu", options=nna.Options(cache_dir=folder)) as session:
        (result,) = map(torch.from_numpy, session.run(None, {session.get_inputs()[0].name: x.numpy()}))
    return result

def compiled(module, folder):
    return torch.compile(module, backend="nnadapter", options={"devices": "fake_npu", "cache_dir": folder})(x)

x = torch.ones(1, 3, 8, 8)
with torch.no_grad():
    for way in (session, compiled):
        folder, seed = Path(sys.argv[1], way.__name__), int(sys.argv[2])
        torch.testing.assert_close(way(module(seed), str(folder)), module(seed)(x), rtol=1e-4, atol=1e-4)
        print(*sorted(each.path.name for each in Folder(folder, 1 << 30).entries()))
"""


@pytest.mark.sweep
def test_next_process_finds_cached_plans(tmp_path):
    pytest.importorskip("torch")

    def here(seed):
        """Return the cache entries written by this process."""
        told = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), contextlib.redirect_stdout(told):
            warnings.simplefilter("ignore")
            patch.setattr(sys, "argv", ["-c", str(tmp_path), seed])
            exec(MODULE, {"__name__": "__main__"})
        return entries(told.getvalue())

    def in_the_next(seed):
        command = [sys.executable, "-W", "ignore", "-c", MODULE, str(tmp_path), seed]
        return entries(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def entries(told):
        """Return after each seed the entries of sessions, and those of compiled functions."""
        return list(zip(*[iter(line.split() for line in told.splitlines())] * 2, strict=True))

    (first,) = here("0")
    for kept in first:
        assert {name.rpartition(".")[2] for name in kept} == {"plan", "program"}
    assert in_the_next("0") == [first]
    (other,) = here("1")
    for kept, before in zip(other, first, strict=True):
        assert len(kept) == 2 * len(before), "another seed has other weights"
