"""What the tests of `qnn` need: the package, and models on the emulator in its compiler."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from nnadapter.drivers.border import open_context
from nnadapter.drivers.selection import select_one

needs_qnn = pytest.mark.skipif(
    find_spec("onnxruntime_qnn") is None, reason="needs onnxruntime-qnn: pip install nnadapter[qnn]"
)


def context(device="qnn", **options):
    return open_context(select_one(device, options))[1]
