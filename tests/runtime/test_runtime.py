"""A model built by hand, on a device, without ONNX."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import Reason
from nnadapter.errors import (
    ClosedError,
    CompilationError,
    DeviceNotFoundError,
    DeviceUnavailableError,
    DriverWarning,
    ExecutionError,
    InputTypeError,
    InvalidInputError,
    InvalidModelError,
    InvalidOptionError,
    MissingInputError,
    NotDelegatedError,
)
from nnadapter.ir import DataType, OperandType
from nnadapter.ir.definition import by_definition
from tests.optional import needs
from tests.runtime.small import X, Y, small, trial
from tests.trial_driver import COUNTS


@pytest.mark.parametrize(
    "name", ["fake_npu", "fake_npu:0", "trial", "cpu", pytest.param("openvino", marks=needs("openvino")), "reference"]
)
def test_results_equal_the_definition(name):
    with nna.Device.acquire(name) as device, nna.Context(device) as context:
        assert device.name == name.removesuffix(":0")
        compilation = nna.Compilation(context, small())
        assert all(compilation.verdicts) and compilation.admission.verdict
        assert [operand.name for operand in (*compilation.inputs, *compilation.outputs)] == [
            "x",
            "y",
            "result",
            "total",
        ]
        with nna.Execution(compilation.compile()) as execution:
            execution.set_input("x", X)
            execution.set_input(1, Y)
            results = execution.compute()
            assert execution.output("total") is execution.output(1) is results[1]
    for got, expected in zip(results, by_definition(small(), [X, Y]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_neither_onnx_nor_onnxruntime_is_imported():
    code = """
import sys, numpy as np, nnadapter as nna
from nnadapter.ir import OperandType
builder = nna.ModelBuilder()
(y,) = builder.add_operation("RELU", (builder.add_input("x", OperandType("float32", [2])),))
with nna.Device.acquire("fake_npu") as device, nna.Context(device, threads=1) as context:
    compilation = nna.Compilation(context, builder.finish([y]))
    deserialized = nna.Compilation.deserialize(context, compilation.serialize())
    with nna.Execution(deserialized) as execution:
        execution.set_inputs([np.array([-1, 2], np.float32)])
        print(execution.compute()[0].tolist())
print(sorted({name.split(".")[0] for name in sys.modules} & {"onnx", "onnxruntime"}))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[0.0, 2.0]\n[]\n"


def test_inputs_stay_set_and_results_are_not_overwritten(execution):
    execution.set_inputs({"x": X, "y": Y})
    first = execution.compute()
    kept = [result.copy() for result in first]
    execution.set_input("y", -Y)
    second = execution.compute()
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_allclose(second[1], X - Y, rtol=1e-6)


def test_inputs_and_constants_as_outputs_are_copied(context):
    builder = nna.ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (2, 3)))
    constant = builder.add_constant("c", np.ones(3, np.float32))
    execution = nna.Execution(nna.Compilation(context, builder.finish([x, constant, x])))
    given = X.copy()
    execution.set_inputs([given])
    results = execution.compute()
    for result in results:
        result += 1
    np.testing.assert_array_equal(given, X)
    np.testing.assert_array_equal(execution.compute()[1], np.ones(3))


def test_noncontiguous_arrays_are_accepted(execution):
    execution.set_inputs([X.T.copy().T, np.repeat(Y, 2, axis=1)[:, ::2]])
    np.testing.assert_allclose(execution.compute()[1], X + Y, rtol=1e-6)


_INPUTS = {
    "dtype": ("x", X.astype(np.float64), InputTypeError, r"^input 'x' is float64\[2, 3\], expected float32\[2, 3\]$"),
    "byte order": ("x", X.astype(">f4"), InputTypeError, r"^input 'x' is >f4\[2, 3\], expected float32\[2, 3\]$"),
    "shape": (1, X[0], InvalidInputError, r"^input 'y' is float32\[3\], expected float32\[2, 3\]$"),
    "list": ("x", X.tolist(), InputTypeError, r"^input 'x' is list, expected a numpy array of float32\[2, 3\]$"),
    "name": ("X", X, InvalidInputError, "^there is no input 'X'; did you mean 'x'"),
    "position": (2, X, InvalidInputError, r"^there is no input 2, expected a name or an index below 2 \(x, y\)$"),
    "negative": (-1, X, InvalidInputError, "there is no input -1"),
    "neither": (None, X, InvalidInputError, "there is no input None"),
}


@pytest.mark.parametrize("case", _INPUTS)
def test_invalid_inputs_are_refused(execution, case):
    which, array, kind, message = _INPUTS[case]
    with pytest.raises(kind, match=message):
        execution.set_input(which, array)


def test_missing_inputs_and_outputs_are_named(execution):
    with pytest.raises(InvalidInputError, match=r"got 1 inputs, expected 2 \(x, y\)"):
        execution.set_inputs([X])
    execution.set_input("x", X)
    with pytest.raises(MissingInputError, match="input 'y' is not set") as caught:
        execution.compute()
    assert caught.value.name == "y"
    with pytest.raises(ExecutionError, match="call compute first"):
        execution.output("result")
    with pytest.raises(InvalidInputError, match="there is no output 'x'"):
        execution.output("x")


def test_devices_and_options_are_checked():
    with pytest.raises(DeviceNotFoundError, match="did you mean 'fake_npu'"):
        nna.Device.acquire("fake_npo")
    with pytest.raises(DeviceNotFoundError, match="no device '3'"):
        nna.Device.acquire("fake_npu:3")
    with pytest.raises(DeviceUnavailableError, match="slot 9 is empty"):
        nna.Device.acquire("trial:9")
    with pytest.raises(InvalidOptionError, match="selected by its name, got 7"):
        nna.Device.acquire(7)
    device = nna.Device.acquire("fake_npu")
    with pytest.raises(InvalidOptionError, match="no option 'thread'; did you mean 'threads'"):
        nna.Context(device, thread=1)
    with pytest.raises(InvalidOptionError, match="option 'threads' of device 'fake_npu' takes int, got 'many'"):
        nna.Context(device, threads="many")
    assert nna.Context(device, threads="2").options["threads"] == 2
    with pytest.raises(InvalidOptionError, match="use Device.acquire"):
        nna.Context("fake_npu")
    with pytest.raises(DeviceUnavailableError, match="no such bus"):
        trial("context")


def test_refused_operations_are_not_compiled():
    COUNTS.clear()
    compilation = nna.Compilation(trial(only=["ADD"]), small())
    assert [bool(verdict) for verdict in compilation.verdicts] == [True, False, False]
    assert compilation.admission.verdict.reason is Reason.UNSUPPORTED_OPERATION
    with pytest.raises(
        NotDelegatedError, match=r"operation 1 RELU \('positive'\): unsupported_operation: .*; oper"
    ) as caught:
        compilation.compile()
    assert caught.value.device == "trial" and caught.value.nodes == ("positive", "result")
    assert "compile" not in COUNTS


def test_admission_may_refuse_the_entire_model():
    compilation = nna.Compilation(trial(max_operations=2), small())
    assert all(compilation.verdicts)
    with pytest.raises(NotDelegatedError, match="does not support the model: memory_limit: 3 operations, room for 2"):
        nna.Execution(compilation)
    with nna.Device.acquire("fake_npu") as device:
        tiny = nna.Compilation(nna.Context(device, memory_bytes=10), small())
        with pytest.raises(NotDelegatedError, match="memory_limit: the segment needs .* bytes"):
            tiny.compile()


@pytest.mark.parametrize("fault", ["supported", "supported_short", "supported_type", "admit", "admit_none"])
def test_driver_that_fails_in_supported_refuses(fault):
    with pytest.raises(NotDelegatedError, match="driver_error"):
        nna.Compilation(trial(fault), small()).compile()


@pytest.mark.parametrize("fault", ["compile", "compile_none", "memory"])
def test_failing_compile_names_the_device(fault):
    with pytest.raises(CompilationError, match="'trial' accepted the model and failed to compile it") as caught:
        nna.Compilation(trial(fault), small()).compile()
    assert caught.value.device == "trial"


@pytest.mark.parametrize("fault", ["execution", "compute", "compute_invalid", "count", "shape", "dtype"])
def test_failing_run_names_the_device(fault):
    with pytest.raises(
        ExecutionError, match="^device 'trial' (failed while computing|failed to create an execution): "
    ):
        execution = nna.Execution(nna.Compilation(trial(fault), small()))
        execution.set_inputs([X, Y])
        execution.compute()


def test_only_models_are_compiled(context):
    with pytest.raises(InvalidModelError, match="got ModelBuilder; finish the model first"):
        nna.Compilation(context, nna.ModelBuilder())


def test_wrong_argument_types_are_refused(context):
    blob = nna.Compilation(context, small()).serialize()
    for use in (lambda: nna.Compilation("fake_npu", small()), lambda: nna.Compilation.deserialize("fake_npu", blob)):
        with pytest.raises(
            InvalidOptionError, match="needs an nnadapter.Context, got 'fake_npu'; create one on a device"
        ):
            use()
    with pytest.raises(InvalidModelError, match="needs an nnadapter.Compilation, got Model; compile the model first"):
        nna.Execution(small())


def test_closing_a_device_closes_its_dependents():
    COUNTS.clear()
    device = nna.Device.acquire("trial")
    context = nna.Context(device)
    compilation = nna.Compilation(context, small()).compile()
    execution = nna.Execution(compilation)
    device.close()
    device.close()
    assert all(handle.closed for handle in (device, context, compilation, execution))
    assert COUNTS["closed"] == COUNTS["context_closed"] == 1
    for use in (
        lambda: nna.Context(device),
        lambda: nna.Compilation(context, small()),
        compilation.compile,
        compilation.serialize,
        lambda: nna.Execution(compilation),
        lambda: execution.set_input("x", X),
        execution.compute,
        lambda: execution.output(0),
        execution.__enter__,
    ):
        with pytest.raises(ClosedError, match="is closed; create another one"):
            use()


def test_dropped_executions_are_freed(context):
    compilation = nna.Compilation(context, small())
    for _ in range(5):
        nna.Execution(compilation)
    assert len(compilation._children) == 0


def test_failing_close_is_a_warning():
    compilation = nna.Compilation(trial("close"), small()).compile()
    with pytest.warns(DriverWarning, match="bus error"):
        compilation.close()


def test_executions_compute_concurrently(context):
    compilation = nna.Compilation(context, small()).compile()
    arrays = [(X * scale, Y + scale) for scale in range(8)]

    def run(pair):
        with nna.Execution(compilation) as execution:
            execution.set_inputs(pair)
            return [execution.compute()[1] for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for (x, y), results in zip(arrays, pool.map(run, arrays), strict=True):
            for result in results:
                np.testing.assert_allclose(result, x + y, rtol=1e-6)


def test_close_waits_for_a_run(execution):
    execution.set_inputs([X, Y])
    started, errors = threading.Event(), []

    def run():
        try:
            while True:
                execution.compute()
                started.set()
        except ClosedError:
            pass
        except Exception as error:  # noqa: BLE001  any other exception fails the test
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    execution.close()
    thread.join()
    assert errors == []


@pytest.mark.parametrize(
    ("where", "error"), [("compile", nna.errors.CompilationError), ("compute", nna.errors.ExecutionError)]
)
def test_system_exit_of_a_driver_is_an_error(where, error):
    with trial(ends=where) as context, pytest.raises(error, match="SystemExit: 3"):
        execution = nna.Execution(nna.Compilation(context, small()))
        execution.set_inputs([X, Y])
        execution.compute()
