"""Valid and invalid responses of a C driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnadapter.drivers import DeviceType, Precision, Reason
from nnadapter.drivers.native import NativeDriver
from nnadapter.errors import (
    CancelledError,
    CompilationError,
    DeviceLostError,
    DeviceNotFoundError,
    DeviceUnavailableError,
    DriverError,
    IncompatibleProgramError,
    OutOfMemoryError,
    TransientError,
)
from nnadapter.ir import DataType, ModelBuilder, OperandType
from tests.c_compiler import compile_library, needs_compiler

pytestmark = needs_compiler
TRIAL = Path(__file__).with_name("trial.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_library(tmp_path_factory.mktemp("trial") / "nnadapter_trial.so", "-DLISTS", TRIAL)


@pytest.fixture(scope="module")
def device(library):
    return NativeDriver("trial_c", library).open("")


def assigning(dtype=DataType.FLOAT32, dimensions=(2, 3)):
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(dtype, dimensions))
    return builder.finish(builder.add_operation("ASSIGN", (x,)))


def context_of(device, fault=""):
    return device.create_context({"fault": fault})


@pytest.mark.parametrize("dtype", list(DataType))
@pytest.mark.parametrize("dimensions", [(2, 3), (5,), (), (0, 4)])
def test_contents_of_every_type_pass(device, dtype, dimensions):
    array = np.arange(np.prod(dimensions, dtype=int)).reshape(dimensions).astype(dtype.array_type)
    program = context_of(device).compile(assigning(dtype, dimensions))
    execution = program.create_execution()
    (result,) = execution.compute([array])
    assert result.dtype == array.dtype and result.shape == array.shape
    assert result.tobytes() == array.tobytes()
    execution.close()
    program.close()


def test_results_belong_to_the_caller(device):
    execution = context_of(device).compile(assigning()).create_execution()
    (first,) = execution.compute([np.ones((2, 3), np.float32)])
    execution.compute([np.zeros((2, 3), np.float32)])
    assert first.all()


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("fails", CompilationError, "trial_c: a sentence"),
        ("no_message", CompilationError, "compile returned FAILED without a message"),
        ("odd_status", CompilationError, "compile returned unknown status 77"),
        ("bad_text", CompilationError, "caf\ufffd"),
        ("endless", CompilationError, "x{1000}"),
        ("null_program", DriverError, "compile returned OK with a null handle"),
        ("status1", CompilationError, "a sentence"),
        ("status2", CompilationError, "a sentence"),
        ("status3", OutOfMemoryError, "a sentence"),
        ("status4", DeviceUnavailableError, "a sentence"),
        ("status5", DeviceLostError, "a sentence"),
        ("status6", IncompatibleProgramError, "a sentence"),
        ("status7", CancelledError, "a sentence"),
        ("status8", CompilationError, "a sentence"),
        ("status9", TransientError, "a sentence"),
    ],
)
def test_failures_become_our_errors(device, fault, error, message):
    with pytest.raises(error, match=message) as caught:
        context_of(device, fault).compile(assigning())
    assert type(caught.value) is error


def test_a_null_execution_is_the_drivers_fault(device):
    program = context_of(device, "null_execution").compile(assigning())
    with pytest.raises(DriverError, match="create_execution returned OK with a null handle"):
        program.create_execution()


@pytest.mark.parametrize(
    ("fault", "reason", "detail"),
    [
        ("silent", Reason.DRIVER_ERROR, "returned an invalid verdict, supported 0 with reason 0"),
        ("odd_answer", Reason.DRIVER_ERROR, "supported 7"),
        ("odd_reason", Reason.DRIVER_ERROR, "reason 99"),
        ("refuses", Reason.DEVICE_REFUSED, "r" * 512),
    ],
)
def test_verdicts(device, fault, reason, detail):
    (verdict,) = context_of(device, fault).supported(assigning())
    assert not verdict and verdict.reason is reason and detail in verdict.detail


def test_failing_supported_call_is_an_error(device):
    with pytest.raises(DriverError, match="a sentence"):
        context_of(device, "supported_fails").supported(assigning())


def test_listed_devices(library):
    rows = NativeDriver("trial_c", library).devices()
    assert [(row.name, row.available) for row in rows] == [("trial_c", True), ("trial_c:7", False)]
    assert rows[0].type is DeviceType.GPU and rows[0].sub_type == "T1" and rows[0].version == "3"
    assert rows[1].reason == "slot 7 is empty; put a card there" and rows[1].vendor == "Trial"


def test_unknown_device_id(library):
    with pytest.raises(DeviceNotFoundError, match="no such slot"):
        NativeDriver("trial_c", library).open("7")


def test_profile_and_options_are_read(device):
    capability = device.capability
    assert [(option.name, option.default, option.help) for option in capability.options] == [
        ("fault", "", "Where to fail.")
    ]
    profile = capability.profile
    assert (profile.peak_flops, profile.bandwidth, profile.transfer_bandwidth) == (1e9, 2e9, 5e9)
    assert (profile.channels_last, profile.host_memory, profile.simulated) == (True, False, True)


def test_precisions_are_read(tmp_path, device):
    assert [row.precision for row in device.capability.precisions] == ["float32"]
    library = compile_library(tmp_path / "trial.so", "-DPRECISIONS=NNADAPTER_PRECISION_W8A8", TRIAL)
    capability = NativeDriver("trial_c", library).open("").capability
    half, whole = capability.precisions
    assert (half.precision, half.per_channel, half.asymmetric, half.full_graph) == ("float16", True, True, False)
    assert (whole.precision, whole.per_channel, whole.asymmetric, whole.full_graph) == ("w8a8", False, True, True)
    assert capability.default_precision is Precision.W8A8 and capability.floating_precisions == ("float16",)


def test_unknown_precision_is_an_error(tmp_path):
    driver = NativeDriver("trial_c", compile_library(tmp_path / "trial.so", "-DPRECISIONS=99", TRIAL))
    with pytest.raises(DeviceUnavailableError, match="precision is 99, expected one of 1, 2"):
        driver.open("")


def test_absent_function_groups_are_reported(device):
    assert not device.has_memory and not device.has_streams and device.memory_statistics() is None
    for use in (lambda: device.allocate(1), device.create_stream, device.synchronize):
        with pytest.raises(DriverError, match="has no functions for (memory|streams); they are optional"):
            use()


@pytest.mark.parametrize("dtype", [DataType.FLOAT32, DataType.INT4])
def test_serialized_and_deserialized(device, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype.array_type)
    blob = context_of(device).compile(assigning(dtype)).serialize()
    (result,) = context_of(device).deserialize(blob).create_execution().compute([array])
    np.testing.assert_array_equal(result, array)


def test_tampered_programs_are_refused(device):
    blob = context_of(device).compile(assigning()).serialize()
    for position in range(0, len(blob), 3):
        damaged = blob[:position] + bytes([blob[position] ^ 1]) + blob[position + 1 :]
        with pytest.raises(IncompatibleProgramError):
            context_of(device).deserialize(damaged)
    for cut in (b"", blob[:-1], blob[:40]):
        with pytest.raises(IncompatibleProgramError):
            context_of(device).deserialize(cut)


def test_programs_of_other_drivers_are_refused(library, device):
    blob = NativeDriver("other_c", library).open("").create_context({"fault": ""}).compile(assigning()).serialize()
    with pytest.raises(IncompatibleProgramError, match="compiled by 'other_c', expected 'trial_c'"):
        context_of(device).deserialize(blob)
