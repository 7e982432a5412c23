"""`nnadapter cache`: what is kept, whether it is sound, what of a model it has."""

from __future__ import annotations

import json

import onnx
import pytest

import nnadapter as nna
from tests.models import CHAIN, parse


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder with one program, and its model."""
    monkeypatch.chdir(tmp_path)
    onnx.save_model(parse(CHAIN), "chain.onnx")
    with nna.InferenceSession("chain.onnx", devices="fake_npu", options=nna.Options(cache_dir="kept")):
        pass
    return tmp_path / "kept"


def test_ls_lists(call, kept):
    shown = call("cache ls --folder kept").stdout
    assert "program; fake_npu; " in shown and ": 1 entry," in shown
    data = json.loads(call("cache ls --folder kept --json").stdout)
    assert data["folder"] == str(kept)
    (entry,) = data["entries"]
    assert entry["kind"] == "program" and entry["key"]["device"]["name"] == "fake_npu"


def test_verify_finds_damage(call, kept):
    assert "0 of 1 entries" in call("cache verify --folder kept").stdout
    (path,) = kept.iterdir()
    contents = path.read_bytes()
    path.write_bytes(contents[:-3] + b"xyz")
    assert "it is damaged" in call("cache verify --folder kept", 1).stdout
    assert list(json.loads(call("cache verify --folder kept --json", 1).stdout)["wrong"]) == [path.name]
    assert "it is damaged" in call("cache ls --folder kept").stdout


def test_explain_says_hit_and_what_differs(call, kept):
    assert call("cache explain chain.onnx -d fake_npu --folder kept").stdout == "segment 0 on fake_npu: hit\n"
    shown = call("cache explain chain.onnx -d fake_npu --option fake_npu.threads=1 --folder kept --json").stdout
    (segment,) = json.loads(shown)["segments"]
    assert not segment["hit"] and "differs in options (threads " in segment["why"]
    assert len(list(kept.iterdir())) == 1


def test_purge_removes(call, kept):
    assert "removed 0 entries" in call("cache purge --folder kept --max-bytes 1000000").stdout
    assert "removed 1 entry," in call("cache purge --folder kept").stdout
    assert list(kept.iterdir()) == []


def test_a_folder_that_is_not_there_is_empty(call, kept):
    shown = call("cache ls --folder nowhere").stdout
    assert "nowhere: 0 entries" in shown and "there is no such folder" in shown
    assert "no such folder" not in call("cache ls --folder kept").stdout
