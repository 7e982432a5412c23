"""What tests of the cache share."""

from __future__ import annotations

import pytest


@pytest.fixture
def device(request):
    """A device that writes programs; skipped where it is not here."""
    name = request.param
    if name == "acme_c":
        request.getfixturevalue("acme")
    elif name == "openvino":
        pytest.importorskip("openvino")
    elif name == "qnn":
        pytest.importorskip("onnxruntime_qnn")
    return name
