"""Shared fixtures of the cache tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def device(request):
    """Return a device with serializable programs; skip if it is unavailable."""
    name = request.param
    if name == "acme_c":
        request.getfixturevalue("acme")
    elif name == "openvino":
        pytest.importorskip("openvino")
    elif name == "qnn":
        pytest.importorskip("onnxruntime_qnn")
    return name
