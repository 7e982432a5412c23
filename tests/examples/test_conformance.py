"""Conformance of both example drivers, fake_npu and openvino. The long form is `nnadapter conformance`."""

from __future__ import annotations

import pytest

from nnadapter.testing import Settings, run_conformance
from tests.c_compiler import compile_acme, needs_compiler
from tests.examples.acme_site import acme_python_site

pytestmark = pytest.mark.slow

DEVICES = [
    "fake_npu",
    "acme_python",
    pytest.param("acme_c", marks=needs_compiler),
    "openvino:CPU",
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("limit", [4, pytest.param(40, marks=pytest.mark.sweep)])
def test_example_drivers_pass_all_cases(device, limit, tmp_path, monkeypatch):
    if device == "acme_python":
        acme_python_site(tmp_path, monkeypatch)
    if device == "acme_c":
        compile_acme(tmp_path)
        monkeypatch.setenv("NNADAPTER_DRIVER_PATH", str(tmp_path))
    card = run_conformance(Settings(device=device, short=True), limit=limit)
    assert card.all_passed, str(card)
