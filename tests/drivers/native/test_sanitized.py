from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.c_compiler import COMPILER, ROOT, SANITIZERS, compile_acme, needs_compiler

pytestmark = needs_compiler


def runtimes():
    """Return the sanitizer's library and libstdc++, to load before Python; the sanitizer intercepts C++ exceptions."""
    names = ("libasan.so", "libstdc++.so.6")
    answers = [subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True) for name in names]
    return [completed.stdout.strip() for completed in answers if Path(completed.stdout.strip()).is_absolute()]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    if len(runtimes()) < 2:
        pytest.skip("the C compiler has no libasan.so, or no libstdc++.so.6")
    folder = compile_acme(tmp_path_factory.mktemp("sanitized"), *SANITIZERS).parent
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(runtimes()),
        # Python itself leaks at exit; the driver counts its own leaks.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # shows models, which Python allocates, to the sanitizer
        "NNADAPTER_DRIVER_PATH": str(folder),
        "PYTHONPATH": str(ROOT),
    }


@pytest.mark.sweep
def test_models_run_without_sanitizer_errors(environment):
    command = [sys.executable, "-m", "tests.drivers.native.acme_models"]
    completed = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stderr
    assert "models are right, no device memory is left behind" in completed.stdout
    assert "runtime error" not in completed.stderr and "AddressSanitizer" not in completed.stderr


@pytest.mark.sweep
def test_sanitizer_reports_an_error(environment):
    code = (
        "import numpy as np\n"
        "from nnadapter.drivers import registry\n"
        "memory = registry.open_device('acme_c').allocate(8)\n"
        "memory.nbytes = 4096\n"
        "handle, memory.handle = memory.handle, None\n"
        "memory._functions.plain('free_memory', handle)\n"
        "memory.handle = handle\n"
        "memory.copy_in(np.zeros(8, np.uint8))\n"
    )
    completed = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert completed.returncode != 0 and "heap-use-after-free" in completed.stderr
