"""Programs after serialization and deserialization."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.errors import DriverError, InputTypeError
from tests.runtime.small import X, Y, small, trial


def test_deserialized_program_computes_the_same(context):
    compilation = nna.Compilation(context, small())
    deserialized = nna.Compilation.deserialize(context, compilation.serialize())
    assert [operand.type for operand in deserialized.inputs] == [operand.type for operand in compilation.inputs]
    assert deserialized.verdicts == () and deserialized.admission.verdict
    execution = nna.Execution(deserialized)
    with pytest.raises(InputTypeError, match="'x' is float64"):
        execution.set_input("x", X.astype(float))
    execution.set_inputs([X, Y])
    np.testing.assert_allclose(execution.compute()[1], X + Y, rtol=1e-6)


def test_deserialized_program_serializes_to_the_same_bytes(context):
    blob = nna.Compilation(context, small()).serialize()
    assert nna.Compilation.deserialize(context, blob).serialize() == blob


def test_driver_without_serialization_returns_none():
    assert nna.Compilation(trial(), small()).serialize() is None


def test_damaged_bytes_are_refused(context):
    blob = nna.Compilation(context, small()).serialize()
    others = [
        b"",
        blob[:-1],
        blob[1:],
        blob + b"x",
        blob[:8] + b"\x09" + blob[9:],
        blob[:60] + b"~" + blob[61:],
        None,
    ]
    for other in others:
        with pytest.raises(nna.errors.IncompatibleProgramError, match="compile"):
            nna.Compilation.deserialize(context, other)


def test_program_of_another_device_is_refused(context):
    blob = nna.Compilation(context, small()).serialize()
    with pytest.raises(nna.errors.IncompatibleProgramError, match="for device 'fake_npu', got a context of 'trial'"):
        nna.Compilation.deserialize(trial(), blob)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "float16"}, "computes with precision float32, got a context with precision float16"),
        ({"memory_bytes": 64}, r"needs \d+ bytes of device memory, got a context with memory_bytes 64"),
        ({"switched_off": "Exp"}, "uses EXP, got a context with it in the option switched_off"),
    ],
)
def test_context_with_incompatible_options_is_refused(context, options, message):
    blob = nna.Compilation(context, small()).serialize()
    other = nna.Context(context.device, **options)
    with pytest.raises(nna.errors.IncompatibleProgramError, match=f"the program {message}"):
        nna.Compilation.deserialize(other, blob)


def test_context_with_the_same_options_is_accepted(context):
    half = nna.Context(context.device, precision="float16", memory_bytes=1000, switched_off="Conv")
    compilation = nna.Compilation(half, small())
    results = []
    for each in (compilation, nna.Compilation.deserialize(half, compilation.serialize())):
        execution = nna.Execution(each)
        execution.set_inputs([X, Y])
        results.append(execution.compute()[0])
    np.testing.assert_array_equal(*results)
    with pytest.raises(nna.errors.IncompatibleProgramError, match="computes with precision float16"):
        nna.Compilation.deserialize(context, compilation.serialize())


def test_deserialization_needs_the_admitted_memory(context):
    blob = nna.Compilation(context, small()).serialize()
    admitted = []
    for memory_bytes in range(0, 400, 8):
        other = nna.Context(context.device, memory_bytes=memory_bytes)
        try:
            nna.Compilation.deserialize(other, blob)
        except nna.errors.IncompatibleProgramError:
            assert not nna.Compilation(other, small()).admission.verdict
        else:
            admitted.append(memory_bytes)
            assert nna.Compilation(other, small()).admission.verdict
    assert admitted and admitted[0] > 0


def test_error_names_the_failing_driver():
    context = trial("deserialize")
    blob = nna.Compilation(context, small()).serialize()
    with pytest.raises(nna.errors.IncompatibleProgramError, match="'trial' did not deserialize .* OSError: no such"):
        nna.Compilation.deserialize(context, blob)
    with pytest.raises(DriverError, match="'trial' did not serialize .* OSError: no such file"):
        nna.Compilation(trial("serialize"), small()).serialize()
