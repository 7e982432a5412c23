"""Steps of a server before Ray starts, and errors of failed starts. No server runs."""

from __future__ import annotations

import pytest

from nnadapter.errors import DeviceUnavailableError
from nnadapter.ray.serving import application
from tests.optional import needs

OTHERS = ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
TRACE = """The deployment failed to start 3 times in a row. Error:
  File "compiling.py", line 4, in compile
nnadapter.errors.NotDelegatedError: node 'a' runs on the CPU

During handling of the above exception, another exception occurred:
nnadapter.errors.InvalidOptionError: device 'null' has no option 'x'
"""


def test_last_nnadapter_error_of_a_trace_is_reported():
    assert application.reason_in(TRACE) == "device 'null' has no option 'x'"
    assert application.reason_in("Traceback:\n  here\nMemoryError: all is full\n\n") == "MemoryError: all is full"
    assert application.reason_in("") == "Ray's logs say more"


@needs("ray")
@pytest.mark.parametrize(("message", "token"), [({}, True), ({"RAY_AUTH_MODE": "disabled"}, False)])
def test_ray_gets_a_secret_token(monkeypatch, message, token):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", *OTHERS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in message.items():
        monkeypatch.setenv(name, value)
    application._prepare()
    assert ("RAY_AUTH_TOKEN" in application.os.environ) is token


def test_missing_device_is_reported_before_the_start():
    with pytest.raises(DeviceUnavailableError, match="device 'fake_npv' is not on this machine: .*fake_npu"):
        application._check_devices("fake_npv")
    application._check_devices(None)
    application._check_devices(("fake_npu", "cpu"))
