from __future__ import annotations

import ast

import pytest

from nnadapter.errors import InvalidOptionError
from nnadapter.new_driver import LANGUAGES, write_driver
from tests.c_compiler import compile_library, needs_compiler


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_placeholders_of_the_template_remain(tmp_path, language):
    written = write_driver("big_npu", tmp_path / "big_npu", language)
    assert written == tuple(sorted(path for path in (tmp_path / "big_npu").rglob("*") if path.is_file()))
    for path in written:
        assert not path.name.endswith(".template") and "package" not in path.parts
        if path.suffix != ".onnx":
            assert "$" not in path.read_text()
        if path.suffix == ".py":
            ast.parse(path.read_text())
            assert max(map(len, path.read_text().splitlines())) <= 120
    assert [entry.name for entry in tmp_path.iterdir()] == ["big_npu"]
    assert any("BigNpu" in path.read_text() for path in written if path.suffix == ".py") is (language == "python")


def test_the_driver_in_python_is_short(tmp_path):
    write_driver("big_npu", tmp_path / "big_npu")
    assert len((tmp_path / "big_npu" / "big_npu" / "driver.py").read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Npu", "expected lowercase letters"),
        ("my-npu", "expected lowercase letters"),
        ("../npu", "expected lowercase letters"),
        ("", "expected lowercase letters"),
        ("7npu", "expected lowercase letters"),
        ("class", "name of Python"),
        ("json", "name of Python"),
        ("numpy", "name of Python"),
        ("fake_npu", "exists already, from nnadapter"),
        ("trial", "exists already, from trial 1.0"),
    ],
)
def test_invalid_names(tmp_path, name, reason):
    with pytest.raises(InvalidOptionError, match=reason):
        write_driver(name, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_existing_files_are_not_overwritten(tmp_path):
    (tmp_path / "npu").mkdir()
    with pytest.raises(InvalidOptionError, match="exists already"):
        write_driver("npu", tmp_path / "npu")
    with pytest.raises(InvalidOptionError, match="cannot be written"):
        write_driver("npu", tmp_path / "missing" / "npu")
    with pytest.raises(InvalidOptionError, match="expected one of"):
        write_driver("npu", tmp_path / "other", "cobol")
    assert [path.name for path in tmp_path.iterdir()] == ["npu"]


@needs_compiler
def test_the_driver_in_c_compiles_without_a_warning(tmp_path):
    write_driver("big_npu", tmp_path / "big_npu", "c")
    compile_library(tmp_path / "big_npu.so", f"-I{tmp_path / 'big_npu' / 'csrc'}", tmp_path / "big_npu/csrc/driver.c")
