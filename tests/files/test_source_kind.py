"""Kinds of model sources."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from nnadapter.files.source_kind import MAGIC, SourceKind, kind_of


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a.json", SourceKind.PADDLE),
        ("b/inference.pdmodel", SourceKind.PADDLE),
        ("c/__model__", SourceKind.PADDLE),
        ("d.onnx", SourceKind.ONNX),
        ("\0", SourceKind.ONNX),
        (b"", SourceKind.ONNX),
        (3, SourceKind.ONNX),
    ],
)
def test_paddle_models_are_recognized_by_name(path, kind):
    assert kind_of(path) is kind


def test_compiled_files_are_recognized_by_magic_bytes(tmp_path):
    for name in ("f", "f.json"):
        (tmp_path / name).write_bytes(MAGIC + b"more")
        assert kind_of(tmp_path / name) is kind_of(str(tmp_path / name)) is SourceKind.COMPILED
    assert kind_of(MAGIC) is SourceKind.COMPILED
    assert kind_of(MAGIC[1:]) is kind_of(MAGIC[:-1]) is SourceKind.ONNX
    assert kind_of(tmp_path) is SourceKind.PADDLE


def test_modules_are_recognized_if_pytorch_is_imported(monkeypatch):
    class Module:
        pass

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert kind_of(Module()) is SourceKind.ONNX
    torch = SimpleNamespace(nn=SimpleNamespace(Module=Module), export=SimpleNamespace(ExportedProgram=Module))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert kind_of(Module()) is SourceKind.MODULE and kind_of(3) is SourceKind.ONNX
