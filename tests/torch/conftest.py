from __future__ import annotations

import pytest


@pytest.fixture
def unloadable_determinant(monkeypatch):
    """Export determinants with PyTorch's exporter; ONNX Runtime does not load the result."""
    torch = pytest.importorskip("torch")
    from nnadapter.torch import onnx_forms, operators

    determinant = torch.ops.aten._linalg_det.default
    forms = {target: form for target, form in onnx_forms.FORMS.items() if target is not determinant}
    monkeypatch.setattr(onnx_forms, "FORMS", forms)
    operators.clear_registry()
    yield
    operators.clear_registry()
