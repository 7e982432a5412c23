from __future__ import annotations

import sys

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.ray import resources
from nnadapter.ray.cluster import (
    PREFIX,
    check_declared,
    missing_devices,
    needed,
    read_devices,
    read_options,
    read_source,
    read_threads,
    read_without,
)
from nnadapter.ray.job import written
from tests.models import CHAIN, parse


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for call in (lambda: nna.ray.map_batches(None, b""), lambda: nna.ray.deployment(b"")):
        with pytest.raises(nna.errors.MissingExtraError, match=r"pip install 'nnadapter\[ray\]'"):
            call()


def test_devices_are_resources():
    result = resources()
    assert result[f"{PREFIX}fake_npu"] == 1.0 and f"{PREFIX}cpu" not in result
    assert needed(("fake_npu", "cpu"), 0.5) == {f"{PREFIX}fake_npu": 0.5}
    assert missing_devices(("fake_npu",)) == {} and "nobody" in missing_devices(("nobody",))["nobody"]
    check_declared({f"{PREFIX}fake_npu": 1}, {"CPU": 2.0})  # no machine declares its devices
    with pytest.raises(nna.errors.DeviceUnavailableError, match=r"'fake_npu'; they have nnadapter:qnn"):
        check_declared({f"{PREFIX}fake_npu": 1}, {"CPU": 2.0, f"{PREFIX}qnn": 1.0})


def test_job_arguments_are_checked():
    assert read_devices(None, is_compiled=True) == {} and read_devices("fake_npu:0", is_compiled=False) == {
        "fake_npu": {}
    }
    assert read_threads(None, 2.0) == 2 and read_threads(None, 0.5) == 1 and read_threads(0, 4) == 0
    assert read_without("cpu") and not read_without("error")
    for call, text in (
        (lambda: read_without("cpus"), "did you mean 'cpu'"),
        (lambda: read_threads(-1, 1), "threads must be an integer"),
        (lambda: read_options({"shadow": 3}), "'shadow' applies to a single session"),
    ):
        with pytest.raises(nna.errors.InvalidOptionError, match=text):
            call()


def test_models_and_compiled_files_are_accepted(tmp_path):
    model = parse(CHAIN)
    first = read_source(model)
    nna.compile(model, tmp_path / "chain.nna", devices="fake_npu")
    compiled = read_source(tmp_path / "chain.nna")
    assert not first.is_compiled and compiled.is_compiled and compiled.name == "chain.nna"
    assert [value.name for value in compiled.signature.inputs] == [value.name for value in first.signature.inputs]
    assert read_source(first.contents).digest == first.digest
    with pytest.raises(nna.errors.ModelFileError):
        read_source(tmp_path / "nothing.onnx")


def test_compiled_file_is_written_once_and_kept_private(tmp_path):
    contents = np.frombuffer(b"a compiled file", np.uint8)
    path = written(contents, "name", tmp_path)
    before = path.stat().st_mtime_ns
    assert written(contents, "name", tmp_path) == path and path.stat().st_mtime_ns == before
    assert path.read_bytes() == b"a compiled file" and path.parent.stat().st_mode & 0o077 == 0
    path.parent.chmod(0o777)
    with pytest.raises(nna.errors.StoredFileError, match="not private"):
        written(contents, "name", tmp_path)
