"""`nnadapter cache`: contents, soundness, and the entries of a model."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import nnadapter as nna
from nnadapter.store import PARTS, Folder, Key, text_part
from tests.models import CHAIN, SANDWICH, parse


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return a cache folder with one program and its plan; their model is next to it."""
    monkeypatch.chdir(tmp_path)
    onnx.save_model(parse(CHAIN), "chain.onnx")
    with nna.InferenceSession("chain.onnx", devices="fake_npu", options=nna.Options(cache_dir="kept")):
        pass
    return tmp_path / "kept"


def test_ls_lists_programs_and_plans(call, kept):
    shown, size = call("cache ls --folder kept").stdout, Path("chain.onnx").stat().st_size
    assert "program; fake_npu; " in shown and ": 2 entries," in shown
    assert f"plan; fake_npu; a model of {size} B in 1 file; all shapes" in shown
    data = json.loads(call("cache ls --folder kept --json").stdout)
    assert data["folder"] == str(kept)
    (entry,) = (each for each in data["entries"] if each["kind"] == "program")
    assert entry["key"]["device"]["name"] == "fake_npu"


def test_ls_lists_entries_with_unknown_keys(call, kept):
    for kind in ("program", "plan"):
        key = Key(kind, {name: text_part({"is": "nothing"}) for name in PARTS})
        assert Folder(kept, 1 << 20).keep(key, b"what", 0.0) == ""
    shown = call("cache ls --folder kept").stdout
    assert shown.count("its key names neither a device nor a model") == 2 and ": 4 entries," in shown


def test_verify_finds_damage(call, kept):
    assert "0 of 2 entries" in call("cache verify --folder kept").stdout
    (path,) = kept.glob("*.program")
    contents = path.read_bytes()
    path.write_bytes(contents[:-3] + b"xyz")
    assert "it is damaged" in call("cache verify --folder kept", 1).stdout
    assert list(json.loads(call("cache verify --folder kept --json", 1).stdout)["wrong"]) == [path.name]
    assert "it is damaged" in call("cache ls --folder kept").stdout


def test_explain_reports_hits_and_differing_options(call, kept):
    shown = call("cache explain chain.onnx -d fake_npu --folder kept").stdout
    assert shown == "plan: hit, for input shapes x=[2, 3]\nsegment 0 on fake_npu: hit\n"
    shown = call("cache explain chain.onnx -d fake_npu --option fake_npu.threads=1 --folder kept --json").stdout
    told = json.loads(shown)
    (segment,) = told["segments"]
    assert not told["plan"]["hit"] and "differs in options (fake_npu.threads " in told["plan"]["miss_reason"]
    assert not segment["hit"] and "differs in options (threads " in segment["miss_reason"]
    assert len(list(kept.iterdir())) == 2


def test_explain_reports_a_miss_for_missing_programs(call, kept):
    explain = "cache explain chain.onnx -d fake_npu --folder kept"
    assert call(f"{explain} --shape x=2,3").stdout.startswith("plan: hit, for input shapes x=[2, 3]\n")
    (program,) = kept.glob("*.program")
    program.unlink()
    assert call(explain).stdout.startswith("plan: miss, the cached plan cannot be used: ")


def test_explain_names_the_input_shapes_of_a_plan(call, kept):
    onnx.save_model(parse(SANDWICH), "sandwich.onnx")
    options = nna.Options(cache_dir="kept")
    with nna.InferenceSession("sandwich.onnx", devices="fake_npu", options=options) as session:
        session.prepare({"x": (3, 4)})
    explain = "cache explain sandwich.onnx -d fake_npu --folder kept"
    assert call(explain).stdout.startswith("plan: hit, for input shapes x=[3, 4]\n")
    assert call(f"{explain} --shape x=3,4").stdout.startswith("plan: hit, for input shapes x=[3, 4]\n")
    assert call(f"{explain} --shape x=9,4").stdout.startswith(
        "plan: miss, the cached plan is for input shapes x=[3, 4]\n"
    )
    with nna.InferenceSession("sandwich.onnx", devices="fake_npu", options=options) as session:
        session.prepare({"x": (9, 4)})
        session.prepare({"x": (8, 4)})  # for dynamic shapes
    shown = call(f"{explain} --shape x=7,4").stdout
    assert shown.startswith("plan: hit, for input shapes x=[")
    own = "for these shapes separately; a session uses the plan, which has its own programs"
    assert all(line.endswith(own) for line in shown.splitlines()[1:]), shown


@pytest.mark.parametrize(
    ("model", "device", "said"),
    [
        ("chain.onnx", "cpu", "plan: miss, plans are not cached if the CPU comes first"),
        ("chain.compiled", "fake_npu", "plan: miss, a compiled model contains its plans"),
        ("other.onnx", "fake_npu", "plan: miss, no similar entry is cached"),
        ("chain.onnx", "null", "plan: miss, nothing is cached for null; the nearest entry is for fake_npu\n"),
    ],
)
def test_explain_has_the_reason_of_a_miss(call, kept, model, device, said):
    nna.compile("chain.onnx", "chain.compiled", devices="fake_npu")
    other = parse(CHAIN)
    other.graph.name = "another"
    onnx.save_model(other, "other.onnx")
    assert call(f"cache explain {model} -d {device} --folder kept").stdout.startswith(said)


def test_purge_removes_entries(call, kept):
    assert "removed 0 entries" in call("cache purge --folder kept --max-bytes 1000000").stdout
    assert "removed 2 entries," in call("cache purge --folder kept").stdout
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize("path", ["root", "root/programs"])
def test_folder_of_the_environment_variable_is_accepted(call, tmp_path, monkeypatch, path):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "root"))
    with nna.InferenceSession("chain.onnx", devices="fake_npu"):
        pass
    programs = tmp_path / "root" / "programs"
    assert f"{programs}: 2 entries," in call(f"cache ls --folder {path}").stdout
    assert f"{programs}: 0 of 2 entries" in call(f"cache verify --folder {path}").stdout
    assert call(f"cache explain chain.onnx -d fake_npu --folder {path}").stdout.startswith("plan: hit")
    assert f"{programs}: removed 2 entries," in call(f"cache purge --folder {path}").stdout


def test_entries_beside_a_subfolder_called_programs_are_found(call, kept):
    (kept / "programs").mkdir()
    assert f"{kept}: 2 entries," in call("cache ls --folder kept").stdout


def test_missing_folder_has_no_entries(call, kept):
    shown = call("cache ls --folder nowhere").stdout
    assert "nowhere: 0 entries" in shown and "there is no such folder" in shown
    assert "no such folder" not in call("cache ls --folder kept").stdout
