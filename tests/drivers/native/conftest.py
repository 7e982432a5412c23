from __future__ import annotations

import pytest

from nnadapter.drivers import registry
from tests.c_compiler import COMPILER, compile_acme


@pytest.fixture(scope="session")
def acme_folder(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("there is no C compiler: none of cc, gcc and clang")
    return compile_acme(tmp_path_factory.mktemp("acme")).parent


@pytest.fixture
def acme(acme_folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("NNADAPTER_DRIVER_PATH", str(acme_folder))
        registry.refresh()
        yield "acme_c"
    registry.refresh()


@pytest.fixture
def device(acme):
    return registry.open_device(acme)
