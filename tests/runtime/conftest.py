"""A context of the device, and an execution of the small model in it."""

from __future__ import annotations

import pytest

import nnadapter as nna
from tests.runtime.small import small


@pytest.fixture
def context():
    with nna.Device.acquire("fake_npu") as device, nna.Context(device) as made:
        yield made


@pytest.fixture
def execution(context):
    return nna.Execution(nna.Compilation(context, small()))
