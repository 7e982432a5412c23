"""Errors of a step whose input was donated to another run."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from nnadapter.drivers import DeviceTensor, Memory
from nnadapter.drivers.tensor_copies import Copies
from nnadapter.engine import RunState, Substitute, after_failure, run_step
from nnadapter.errors import DonatedValueError, ExecutionError


class Gone(Memory):
    """Memory with other contents by now."""

    nbytes = 4

    def copy_in(self, array):
        raise AssertionError("nobody writes there")

    def copy_out(self, array):
        raise DonatedValueError("it was given up; feed it anew")

    def free(self):
        pass


@pytest.fixture
def gone():
    return [Copies(None, {"npu": DeviceTensor(Gone(), np.dtype(np.float32), (1,))})]


def step(*, may_try=True):
    bound = MagicMock()
    bound.step = SimpleNamespace(segment=3, device="npu", outputs=("y",))
    bound.is_checked, bound.failures, bound.health_keys = True, (), ("y", "node")
    bound.health.is_troubled, bound.health.may_try.return_value = not may_try, may_try
    bound.health.text.return_value = "it rests"
    bound.substitute = Substitute("cpu", "the CPU", MagicMock(), (0,))
    return bound


def test_donated_input_fails_if_the_device_is_paused(gone):
    with pytest.raises(DonatedValueError, match="feed it anew"):
        run_step(step(may_try=False), RunState(gone))


def test_device_error_is_raised_despite_donated_input(gone):
    bound = step()
    failed = ExecutionError("too hot", device="npu", phase="run")
    with pytest.raises(ExecutionError, match="segment 3 failed .*too hot.*cannot be repeated: .*feed it anew"):
        after_failure(bound, failed, RunState(gone), 0.0)
    bound.health.failed.assert_called_once_with(("y", "node"), failed)


def test_feeding_a_donated_value_is_no_device_failure(gone):
    bound = step()
    with pytest.raises(DonatedValueError):
        after_failure(bound, DonatedValueError("gone"), RunState(gone), 0.0)
    bound.health.failed.assert_not_called()
