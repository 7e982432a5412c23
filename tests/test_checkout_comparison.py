"""The comparison of two checkouts, which finds planted differences, and none in identical checkouts."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nnadapter as nna
from benchmarks import side_by_side
from tests.models import CHAIN, parse
from tests.optional import needs

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def record():
    feeds = {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
    devices = [("fake_npu", {"switched_off": "Relu"}), "cpu"]
    return side_by_side.run_network(nna, parse(CHAIN), feeds, devices, "priority")


def differences(old, new, **options):
    return list(side_by_side.differences(old, new, **{"measured": False, "renamed": {}, **options}))


def test_equal_records_have_no_differences(record):
    assert record["report"]["nodes"] and differences(record, copy.deepcopy(record)) == []


def test_one_bit_of_a_result_is_a_difference(record):
    other = copy.deepcopy(record)
    other["results"][0].view(np.uint32).flat[0] ^= 1
    assert differences(record, other) == ["result 0 differs"]
    assert differences(record, other, measured=True) == []


def test_a_refusal_code_is_a_difference(record):
    other = copy.deepcopy(record)
    node = other["report"]["nodes"][0]
    assert node["refusals"][0]["reason"] == "switched_off"
    node["refusals"][0]["reason"] = "unsupported_type"
    assert differences(record, other) == ["report.nodes[0].refusals[0].reason: 'switched_off', now 'unsupported_type'"]


def test_numbers_and_keys_of_the_report_are_compared(record):
    other = copy.deepcopy(record)
    other["report"]["coverage"]["nodes"] += 0.01
    other["report"]["coverage"]["new"] = 1
    del other["report"]["coverage"]["flops"]
    texts = differences(record, other)
    assert [text.partition(":")[0] for text in texts] == [f"report.coverage.{key}" for key in ("flops", "new", "nodes")]


def test_renamed_keys_and_words_are_no_differences(record):
    other = copy.deepcopy(record)
    other["report"]["extent"] = other["report"].pop("coverage")
    assert differences(record, other) != []
    assert differences(record, other, renamed={"coverage": "extent"}) == []


def test_error_instead_of_a_result_is_a_difference(record):
    assert differences(record, {"error": "InvalidModelError"}) == ["error: None, now 'InvalidModelError'"]


@needs("onnx_ir")
def test_identical_checkouts_have_no_differences():
    words = [sys.executable, "-m", "benchmarks", "side_by_side", str(ROOT), "--networks", "composition 1"]
    words += ["--devices", "fake_npu", "--policies", "priority"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "| 1 | 1 | 0 |"), done.stderr
