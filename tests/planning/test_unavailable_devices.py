from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import parser

import nnadapter as nna
from nnadapter.errors import DeviceNotFoundError, DeviceOpeningError, FallbackWarning, InvalidOptionError

MODEL = parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> double (float[2] x) => (float[2] y) { y = Add(x, x) }'
)
X = {"x": np.ones(2, np.float32)}
FAILS = ("trial", {"fault": "context"})


@pytest.mark.slow
def test_session_continues_without_the_device_and_warns():
    with pytest.warns(FallbackWarning, match="'trial' did not create a context: .*; the session goes on without it"):
        session = nna.InferenceSession(MODEL, devices=[FAILS, "fake_npu"])
    with session:
        assert session.devices == ("fake_npu", "cpu")
        assert session.run(None, X)[0].tolist() == [2, 2]
        (incident,) = session.report().incidents
        assert (incident.stage, incident.device, incident.kind) == ("load", "trial", "DeviceOpeningError")


def test_fallback_policy_decides_about_unopenable_devices():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with nna.InferenceSession(MODEL, devices=FAILS, options={"fallback": "allow"}) as session:
            assert session.run(None, X)[0].tolist() == [2, 2]
    with pytest.raises(DeviceOpeningError) as refused:
        nna.InferenceSession(MODEL, devices=FAILS, options={"fallback": {"load": "forbid"}})
    assert (refused.value.device, refused.value.phase) == ("trial", "context")


@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")
def test_unopenable_device_is_skipped():
    with nna.InferenceSession(MODEL, devices=["trial:9", "trial"]) as session:
        assert session.devices == ("trial", "cpu")
    with pytest.raises(DeviceOpeningError) as refused:
        nna.InferenceSession(MODEL, devices="trial:9", options={"fallback": "forbid"})
    assert (refused.value.device, refused.value.phase) == ("trial:9", "open")


def test_errors_of_the_caller_are_raised():
    with pytest.raises(DeviceNotFoundError):
        nna.InferenceSession(MODEL, devices="nobodys")
    with pytest.raises(InvalidOptionError):
        nna.InferenceSession(MODEL, devices=("trial", {"falt": "context"}))
