"""`--cache-dir` of `nnadapter run` and `nnadapter report`."""

from __future__ import annotations

import json

import onnx
import pytest

from tests.models import CHAIN, parse


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save_model(parse(CHAIN), "chain.onnx")
    return "chain.onnx"


def test_run_fills_the_cache_and_report_shows_hits(call, model, tmp_path):
    def cached():
        told = json.loads(call(f"report {model} -d fake_npu --cache-dir kept --format json").stdout)
        return told["segments"][0]["cache"]["hit"]

    assert not cached() and not (tmp_path / "kept").exists()
    first = call(f"run {model} -d fake_npu --cache-dir kept --format json").stdout
    assert sorted(path.suffix for path in (tmp_path / "kept").iterdir()) == [".plan", ".program"]
    second = call(f"run {model} -d fake_npu --cache-dir kept --format json").stdout
    assert json.loads(first)["outputs"] == json.loads(second)["outputs"]
    assert cached()
