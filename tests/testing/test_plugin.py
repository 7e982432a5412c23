"""Test file of a third-party driver: a marker and a few lines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nnadapter.testing import conformance_cases

MARKED = """
import pytest

@pytest.mark.conformance("fake_npu", pattern="operations/ADD")
def test_conformance(conformance_case):
    conformance_case.check()
"""
LISTED = """
import pytest
from nnadapter.testing import conformance_cases

@pytest.mark.parametrize("case", conformance_cases("null", pattern="operations/ADD"), ids=str)
def test_conformance(case):
    case.check()
"""


def run(folder, text):
    (folder / "test_driver.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "nnadapter.testing.plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run([*words, str(folder)], cwd=folder, env=environment, capture_output=True, text=True)


def test_marked_test_runs_every_case(tmp_path):
    result = run(tmp_path, MARKED)
    assert "4 passed" in result.stdout, result.stdout


def test_listed_cases_report_failures(tmp_path):
    result = run(tmp_path, LISTED)
    assert "4 failed" in result.stdout and "wrong values" in result.stdout, result.stdout
    assert "repeat: nnadapter conformance null -k operations/ADD/0" in result.stdout


@pytest.mark.slow
def test_missing_marker_is_an_error(tmp_path):
    result = run(tmp_path, "def test_it(conformance_case): pass")
    assert 'add @pytest.mark.conformance("DEVICE") above it' in result.stdout + result.stderr


def test_cases_can_be_run_one_by_one():
    (case,) = conformance_cases("null", pattern="operations/ADD/1")
    with pytest.raises(AssertionError, match="wrong values"):
        case.check()
    case.bench.close()
