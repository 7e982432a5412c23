from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.c_compiler import ACME, ROOT, needs_compiler
from tests.optional import is_installed, skip_without

pytestmark = needs_compiler
SHOW = (
    "import json, nnadapter as nna\n"
    "rows = {row.name: row for row in nna.devices()}\n"
    "print(json.dumps([rows['acme_c'].available, rows['acme_c'].distribution, rows['acme_c'].reason]))"
)


@pytest.fixture
def tree(tmp_path):
    """Copy the example, so that builds leave no files in the repository."""
    shutil.copytree(ACME, tmp_path / "examples" / "drivers" / "acme_c")
    shutil.copytree(ROOT / "nnadapter" / "include", tmp_path / "nnadapter" / "include")
    return tmp_path / "examples" / "drivers" / "acme_c"


def run(*command, **environment):
    completed = subprocess.run(
        list(map(str, command)), env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("folder", "backend"), [(".", "setuptools"), pytest.param("cmake", "scikit_build_core", marks=pytest.mark.sweep)]
)
def test_installed_package_is_found(tree, tmp_path, folder, backend):
    if not is_installed(backend):
        skip_without(backend)
    if folder == "cmake" and shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    site = tmp_path / "site"
    run(*pip, "--no-build-isolation", "--target", site, tree / folder, PYTHONPATH=str(ROOT))
    output = run(sys.executable, "-c", SHOW, PYTHONPATH=os.pathsep.join((str(ROOT), str(site))))
    assert output.strip() == '[true, "acme-c 1.0", ""]'


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
def test_cmake_builds_the_driver(tree, tmp_path):
    build = tmp_path / "build"
    run("cmake", "-S", tree, "-B", build)
    run("cmake", "--build", build)
    output = run(sys.executable, "-c", SHOW, PYTHONPATH=str(ROOT), NNADAPTER_DRIVER_PATH=str(build))
    assert output.strip() == '[true, "NNADAPTER_DRIVER_PATH", ""]'


@pytest.mark.sweep
def test_module_without_its_library_is_listed(tmp_path):
    shutil.copytree(ACME / "acme_c", tmp_path / "acme_c")
    (tmp_path / "acme_c-1.0.dist-info").mkdir()
    (tmp_path / "acme_c-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-c\nVersion: 1.0\n")
    Path(tmp_path / "acme_c-1.0.dist-info" / "entry_points.txt").write_text("[nnadapter.drivers]\nacme_c = acme_c\n")
    output = run(sys.executable, "-c", SHOW, PYTHONPATH=os.pathsep.join((str(ROOT), str(tmp_path))))
    assert "does not exist; install the driver again" in output
