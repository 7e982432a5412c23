from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_first_use_of_public_names_from_several_threads():
    code = """
import threading
import nnadapter
names = ["Tensor", "Device", "Context", "Compilation", "Execution", "tensor", "compile", "InferenceSession"]
begin, failures = threading.Barrier(len(names)), []

def use(name):
    begin.wait()
    try:
        getattr(nnadapter, name)
    except BaseException as error:
        failures.append((name, repr(error)))

threads = [threading.Thread(target=use, args=(name,)) for name in names]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert not failures, failures
"""
    subprocess.run([sys.executable, "-c", code], check=True)
