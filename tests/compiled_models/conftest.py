"""What tests of compiled models share."""

from __future__ import annotations

import pytest

from nnadapter.drivers import registry
from tests.c_compiler import COMPILER, compile_acme


@pytest.fixture(scope="module")
def acme(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("there is no C compiler: none of cc, gcc and clang")
    folder = compile_acme(tmp_path_factory.mktemp("acme")).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNADAPTER_DRIVER_PATH", str(folder))
        registry.refresh()
        yield
    registry.refresh()
