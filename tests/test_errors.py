"""The exception tree; the place of an error is filled in once, at boundaries."""

from __future__ import annotations

import pickle

import pytest

from nnadapter import errors
from nnadapter.errors import (
    CompilationError,
    DeviceUnavailableError,
    ExecutionError,
    MissingDeviceExtraError,
    MissingExtraError,
    TransientError,
    located,
)


def test_located_fills_in_only_missing_fields():
    error = located(TransientError("busy", phase="create"), "acme", "run", 3, ["a", "b"])
    assert (error.device, error.phase, error.segment, error.nodes) == ("acme", "create", 3, ("a", "b"))
    assert located(error, "other", "run", 4, ["c"]) is error
    assert (error.device, error.segment, error.nodes) == ("acme", 3, ("a", "b"))


def test_transient_errors_are_execution_errors():
    assert issubclass(TransientError, ExecutionError)
    assert CompilationError("x").phase == "compile" and ExecutionError("x").phase is None


def test_missing_package_error_is_a_device_unavailable_error():
    error = MissingDeviceExtraError("install it", extra="qnn", package="onnxruntime-qnn")
    assert isinstance(error, DeviceUnavailableError) and isinstance(error, MissingExtraError)
    assert (str(error), error.extra, error.phase, error.device) == ("install it", "qnn", "open", None)


@pytest.mark.parametrize(
    "kind", ["DeviceLostError", "OutOfMemoryError", "IncompatibleProgramError", "NotDelegatedError"]
)
def test_error_fields_survive_pickling(kind):
    error = getattr(errors, kind)("gone", device="acme", segment=1, nodes=["a"], phase="run")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and vars(again) == vars(error) and str(again) == "gone"
