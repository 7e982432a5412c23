"""Versions read from folder names, compared with importlib.metadata."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from nnadapter.process import packages


def test_versions_of_all_installed_packages():
    for name in {distribution.name for distribution in metadata.distributions()}:
        assert packages.installed_version(name) == metadata.version(name), name


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("a_package-1.2.dist-info", "A.package"),
        ("A.Package-1.2.dist-info", "a-package"),
        ("a_package.egg-info", "a-package"),
        ("a__package-1.2.dist-info", "a-package"),
    ],
)
def test_package_names_are_normalized(tmp_path, monkeypatch, folder, name):
    (tmp_path / folder).mkdir()
    for file in ("METADATA", "PKG-INFO"):
        (tmp_path / folder / file).write_text("Metadata-Version: 2.1\nName: a-package\nVersion: 1.2\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "missing"), str(tmp_path)])
    assert packages.installed_version(name) == metadata.version(name) == "1.2"


def test_first_package_on_the_path_counts(tmp_path, monkeypatch):
    for folder, file, version in (("new/a.egg-info", "PKG-INFO", "2.0"), ("old/a-1.0.dist-info", "METADATA", "1.0")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / file).write_text(f"Metadata-Version: 2.1\nName: a\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "new"), str(tmp_path / "old")])
    assert packages.installed_version("a") == metadata.version("a") == "2.0"


def test_missing_package_has_no_version():
    assert packages.installed_version("no-such-package-of-anybody") == ""


def test_builds_under_other_names_have_versions(tmp_path, monkeypatch):
    for name in ("onnxruntime_gpu-1.31.0", "onnxruntime_qnn-2.3", "onnx-1.20", "onnxruntimes-1.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    older = tmp_path / "onnxruntime_old.egg-info"
    older.mkdir()
    (older / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: onnxruntime-old\nVersion: 1.2\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packages.installed_version("onnxruntime") == ""
    builds = "onnxruntime_gpu 1.31.0, onnxruntime_old 1.2, onnxruntime_qnn 2.3"
    assert packages.installed_builds("onnxruntime") == builds
    assert packages.installed_builds("torch") == ""
