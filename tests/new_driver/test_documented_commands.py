"""The five commands of docs/write-a-driver.md, verbatim, in a new environment."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.c_compiler import needs_compiler

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "write-a-driver.md").read_text(encoding="utf-8")
COMMANDS = re.search(r"## Five commands\n.*?```console\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return variables of a new environment that sees the installed packages and this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (packages / "outer.pth").write_text("\n".join([str(Path(__file__).parents[2]), *lines, ""]))
    for name in ("nnadapter", "pytest", "pip"):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m {name} "$@"\n')
        script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(folder)}


def run(command, environment, folder):
    completed = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert completed.returncode == 0, f"{command}: {completed.stdout}{completed.stderr}"
    return completed.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="the scripts of the environment are for a POSIX shell")
@pytest.mark.parametrize("language", ["python", pytest.param("c", marks=(needs_compiler, pytest.mark.sweep))])
def test_documented_commands_work(environment, tmp_path, language):
    assert len(COMMANDS) == 5
    name, first = f"my_{language}_npu", COMMANDS[0] if language == "python" else f"{COMMANDS[0]} --lang {language}"
    outputs = [run(command.replace("my_npu", name), environment, tmp_path) for command in (first, *COMMANDS[1:])]
    assert re.search(r"\d+ passed", outputs[2])
    assert name in outputs[3] and f"ran on    {name}: 2 segments" in outputs[4]
