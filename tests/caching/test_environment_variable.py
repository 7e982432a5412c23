"""Caching by NNADAPTER_CACHE_DIR; a session's own options take precedence."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest

import nnadapter as nna
from nnadapter.store import Folder
from tests.caching.nets import X, network
from tests.models import CHAIN, parse


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Return the program folder of the cache named by the variable."""
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "named"))
    return tmp_path / "named" / "programs"


def is_hit(device="fake_npu", **options):
    """Return whether all segments were hits; None if there was no cache."""
    with nna.InferenceSession(network(), devices=device, options=nna.Options(**options)) as session:
        session.run(None, {"x": X})
        found = [segment.cache for segment in session.report().segments]
    return None if None in found else all(each.hit for each in found)


def kinds(folder):
    return sorted(each.path.name.rpartition(".")[2] for each in Folder(folder, 1 << 30).entries())


def test_environment_variable_enables_caching(kept):
    assert [is_hit(), is_hit()] == [False, True]
    assert kinds(kept) == ["plan", "program"]


def test_caching_is_disabled_by_default(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for value in ("", None):
        if value is None:
            monkeypatch.delenv("NNADAPTER_CACHE_DIR", raising=False)
        else:
            monkeypatch.setenv("NNADAPTER_CACHE_DIR", value)
        assert is_hit() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms have other folders")
def test_option_alone_uses_the_platform_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("NNADAPTER_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [is_hit(cache_dir=True), is_hit(cache_dir=True)] == [False, True]
    assert kinds(tmp_path / "nnadapter" / "programs") == ["plan", "program"]


def test_session_options_override_the_environment(kept, tmp_path):
    assert is_hit(cache_dir=False) is None
    assert is_hit(cache_dir=tmp_path / "own") is False
    assert not kept.exists()
    assert is_hit() is False and is_hit(cache_dir=True) is True


def test_reports_read_no_weights_for_caching(kept):
    report = nna.partition_report(network(), "fake_npu")
    assert [segment.cache for segment in report.segments] == [None]


def test_compared_parts_of_a_model_are_not_cached(kept):
    tight = {"relative_tolerance": 1e-12, "absolute_tolerance": 1e-12}
    assert not nna.compare(network(), "fake_npu", {"x": X}, layers=True, **tight).agrees
    assert kinds(kept) == ["plan", "program"]


@pytest.mark.slow
@pytest.mark.parametrize("made", ["", ", options={'fallback': 'forbid'}", ", onnxruntime.SessionOptions()"])
def test_cpu_session_does_not_import_caching(kept, tmp_path, made):
    onnx.save_model(parse(CHAIN), tmp_path / "model.onnx")
    code = (
        "import sys, nnadapter, onnxruntime\n"
        f"with nnadapter.InferenceSession(sys.argv[1]{made}) as session:\n"
        "    pass\n"
        "names = [name.removeprefix('nnadapter.') for name in sys.modules]\n"
        "unused = ('store', 'engine.cached', 'engine.compiled_file', 'engine.file_')\n"
        "print([name for name in names if name.startswith(unused)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.onnx")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
