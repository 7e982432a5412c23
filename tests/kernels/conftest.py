"""No kernel of one test is there in the next."""

from __future__ import annotations

import pytest

from nnadapter.drivers.kernel import registered_kernels
from nnadapter.kernels.registry import unregister_kernel


@pytest.fixture(autouse=True)
def no_kernels_left():
    yield
    for kernel in registered_kernels():
        unregister_kernel(kernel)
