from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nnadapter.files.atomic_files import cache_folder


def test_environment_variable_overrides_the_platform_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "platform"))
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms have other folders")
def test_home_directory_is_expanded_and_spaces_stripped(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", "~/own ")
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", " ")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "nnadapter"


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms have other folders")
def test_default_is_the_platform_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "nnadapter"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == Path(tmp_path, ".cache", "nnadapter")
