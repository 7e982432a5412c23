from __future__ import annotations

import sys

import pytest

from nnadapter.drivers.execution_providers import Backing, backing, missing_library, takes_addition
from nnadapter.errors import DeviceUnavailableError
from tests.c_compiler import compile_library, needs_compiler


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="another loader says it in other words")
def test_missing_library_of_a_provider_is_named(tmp_path):
    (tmp_path / "acme.c").write_text('__attribute__((visibility("default"))) int acme(void) { return 1; }')
    (tmp_path / "needs.c").write_text("extern int acme(void); int needs(void); int needs(void) { return acme(); }")
    engine = compile_library(tmp_path / "libacme_engine.so", tmp_path / "acme.c")
    provider = tmp_path / "libonnxruntime_providers_acme.so"
    flags = (f"-Wl,-rpath,{tmp_path}", f"-L{tmp_path}", "-lacme_engine")
    compile_library(provider, tmp_path / "needs.c", *flags)
    elsewhere = engine.rename(tmp_path / "elsewhere.so")
    assert missing_library("AcmeExecutionProvider", tmp_path) == "libacme_engine.so"
    elsewhere.rename(engine)
    assert missing_library("AcmeExecutionProvider", tmp_path) == ""
    (tmp_path / "libonnxruntime_providers_no.so").write_text("no library")
    assert missing_library("NoExecutionProvider", tmp_path) == ""
    assert missing_library("OtherExecutionProvider", tmp_path) == ""


def test_error_of_a_failing_provider_names_its_missing_library(monkeypatch):
    monkeypatch.setattr(backing, "missing_library", lambda provider: "libacme_engine.so.3")
    with pytest.raises(DeviceUnavailableError, match="does not start: libacme_engine.so.3 is not found; install it"):
        takes_addition(Backing(provider="RknpuExecutionProvider"))
