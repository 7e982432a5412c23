"""Decorator that pauses garbage collection during a call and restores its state."""

import gc
import subprocess
import sys

import pytest

from nnadapter.process import paused_collection


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def enabled(request):
    was_enabled = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was_enabled else gc.disable)()


@paused_collection
def inner():
    assert not gc.isenabled()


@paused_collection
def outer():
    inner()
    assert not gc.isenabled()


@paused_collection
def fails():
    raise ValueError("x")


def test_pauses_within_pauses(enabled):
    outer()
    assert gc.isenabled() is enabled


def test_collection_resumes_after_an_error(enabled):
    with pytest.raises(ValueError, match="x"):
        fails()
    assert gc.isenabled() is enabled


FIRST = """
import gc
import subprocess
import sys
from nnadapter.process.resources import paused_collection

{before}
kept, collected = [], []
gc.callbacks.append(lambda phase, facts: phase == "stop" and collected.append(facts["generation"]))

@paused_collection
def made():
    kept.extend([] for _ in range(100_000))

for _ in range(2):
    made()
    before = len(collected)
    kept.extend([] for _ in range(500))
    print(len(collected) - before)
print(gc.get_freeze_count() > 1_000, 100_000 <= len(gc.get_objects(2)))
"""


@pytest.mark.parametrize("preparation", ["", "gc.freeze()"], ids=["usual", "already frozen"])
def test_objects_of_the_first_call_are_frozen(preparation):
    command = [sys.executable, "-c", FIRST.format(before=preparation)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert printed == [str(int(bool(preparation))), "1", str(bool(preparation)), str(not preparation)]
