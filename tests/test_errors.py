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


def test_what_an_error_does_not_say_is_filled_in_and_the_rest_stays():
    error = located(TransientError("busy", phase="create"), "acme", "run", 3, ["a", "b"])
    assert (error.device, error.phase, error.segment, error.nodes) == ("acme", "create", 3, ("a", "b"))
    assert located(error, "other", "run", 4, ["c"]) is error
    assert (error.device, error.segment, error.nodes) == ("acme", 3, ("a", "b"))


def test_transient_errors_are_failures_of_a_run():
    assert issubclass(TransientError, ExecutionError)
    assert CompilationError("x").phase == "compile" and ExecutionError("x").phase is None


def test_a_missing_package_is_a_device_that_cannot_be_used():
    error = MissingDeviceExtraError("install it", extra="qnn", package="onnxruntime-qnn")
    assert isinstance(error, DeviceUnavailableError) and isinstance(error, MissingExtraError)
    assert (str(error), error.extra, error.phase, error.device) == ("install it", "qnn", "open", None)


@pytest.mark.parametrize(
    "kind", ["DeviceLostError", "OutOfMemoryError", "IncompatibleProgramError", "NotDelegatedError"]
)
def test_fields_survive_the_way_between_processes(kind):
    error = getattr(errors, kind)("gone", device="acme", segment=1, nodes=["a"], phase="run")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and vars(again) == vars(error) and str(again) == "gone"
