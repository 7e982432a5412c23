"""The C compiler of this machine, for tests of C drivers, which are skipped without one."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import nnadapter as nna
from nnadapter.drivers import registry

ROOT = Path(__file__).parent.parent
ACME = ROOT / "examples" / "drivers" / "acme_c"
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler: none of cc, gcc and clang")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g")


def compile_c(out: Path, *arguments: object) -> Path:
    """Run the compiler; fail with its output."""
    command = [COMPILER, "-std=c11", *WARNINGS, f"-I{nna.get_include()}", *map(str, arguments), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def compile_library(out: Path, *arguments: object) -> Path:
    return compile_c(out, "-shared", "-fPIC", "-fvisibility=hidden", *arguments)


def compile_acme(folder: Path, *flags: str) -> Path:
    library = folder / "nnadapter_acme_c.so"
    library.write_bytes(_acme_by(*flags))
    library.chmod(0o755)
    return library


@contextmanager
def acme_among_devices(folder: Path, *flags: str, name: str = "acme_c") -> Iterator[str]:
    """Yield the device name of the example driver, compiled into `folder`.

    Other flags need another name, because opened devices stay open.
    """
    library = compile_acme(folder, *flags)
    library.rename(folder / f"nnadapter_{name}.so")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNADAPTER_DRIVER_PATH", str(folder))
        registry.refresh()
        yield name
    registry.refresh()


@functools.cache
def _acme_by(*flags: str) -> bytes:
    """Return the library, compiled once per set of flags."""
    sources = sorted((ACME / "csrc").glob("*.c"))
    flags = ("-D_POSIX_C_SOURCE=200809L", "-O2", "-pthread", *flags)
    with tempfile.TemporaryDirectory() as folder:
        return compile_library(Path(folder, "acme.so"), *flags, *sources, "-lm").read_bytes()
