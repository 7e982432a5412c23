"""The C compiler of this machine, for tests of drivers in C; tests are skipped where there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import nnadapter as nna

ROOT = Path(__file__).parent.parent
ACME = ROOT / "examples" / "drivers" / "acme_c"
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler: none of cc, gcc and clang")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g")


def compile_c(out: Path, *arguments: object) -> Path:
    """Run the compiler; what it prints is the failure's message."""
    command = [COMPILER, "-std=c11", *WARNINGS, f"-I{nna.get_include()}", *map(str, arguments), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def compile_library(out: Path, *arguments: object) -> Path:
    return compile_c(out, "-shared", "-fPIC", "-fvisibility=hidden", *arguments)


def compile_acme(folder: Path, *flags: str) -> Path:
    sources = sorted((ACME / "csrc").glob("*.c"))
    flags = ("-D_POSIX_C_SOURCE=200809L", "-O2", "-pthread", *flags)
    return compile_library(folder / "nnadapter_acme_c.so", *flags, *sources, "-lm")
