from __future__ import annotations

import pytest

from nnadapter.drivers import registry
from tests.c_compiler import COMPILER, compile_acme


@pytest.fixture(scope="module")
def acme(tmp_path_factory):
    """acme_c is among the devices."""
    if COMPILER is None:
        pytest.skip("there is no C compiler: none of cc, gcc and clang")
    folder = compile_acme(tmp_path_factory.mktemp("acme")).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNADAPTER_DRIVER_PATH", str(folder))
        registry.refresh()
        yield
    registry.refresh()


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
