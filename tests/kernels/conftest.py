from __future__ import annotations

import pytest

from nnadapter import unregister_kernel
from nnadapter.drivers.kernel import registered_kernels


@pytest.fixture(autouse=True)
def no_kernels_left():
    yield
    for kernel in registered_kernels():
        unregister_kernel(kernel)
