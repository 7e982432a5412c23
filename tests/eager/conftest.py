from __future__ import annotations

import pytest

import nnadapter as nna
from nnadapter import unregister_kernel
from nnadapter.drivers.kernel import registered_kernels


@pytest.fixture(autouse=True)
def no_kernels_left():
    yield
    for kernel in registered_kernels():
        unregister_kernel(kernel)


@pytest.fixture(autouse=True)
def fallback_is_forbidden():
    previous = nna.set_eager_fallback("forbid")
    yield
    nna.set_eager_fallback(previous)
