from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from random import Random

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.drivers import Compatibility
from nnadapter.drivers.native import NativeDriver, seal
from nnadapter.errors import IncompatibleProgramError
from nnadapter.ir import DataType, ModelBuilder, OperandType
from tests.c_compiler import ROOT, compile_acme, compile_library, needs_compiler
from tests.drivers.native.acme_models import (
    HEAD_BYTES,
    MODELS,
    OPTIONS,
    check_bounds,
    dense,
    feeds_of,
    inside,
    model_of,
)
from tests.drivers.native.test_binding import TRIAL

pytestmark = needs_compiler
X = np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)
OTHER_VERSIONS = {"older": "-DACME_RELEASE=0", "newer": "-DACME_RELEASE=2", "other chip": '-DACME_CHIP="B7"'}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        name: compile_acme(tmp_path_factory.mktemp("other"), "-O0", flag).parent
        for name, flag in OTHER_VERSIONS.items()
    }


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Return a function that creates a context with a fault and compiler flags."""

    def context(fault, *flags):
        folder = tmp_path_factory.mktemp("trial")
        library = compile_library(folder / "nnadapter_trial.so", *flags, TRIAL)
        return NativeDriver("trial_c", library).open("").create_context({"fault": fault})

    return context


@pytest.fixture
def context(device):
    return device.create_context(OPTIONS)


def written(folder):
    driver = NativeDriver("acme_c", folder / "nnadapter_acme_c.so")
    return driver.open("").create_context(OPTIONS).compile(dense(0)[0]).serialize()


def compatibility_of(context, blob):
    return context.check_blob(memoryview(blob))


def check_computes(context, blob):
    with closing(context.deserialize(blob)) as program, closing(program.create_execution()) as execution:
        np.testing.assert_allclose(execution.compute([X])[0], dense(0)[1](X), rtol=1e-5, atol=1e-6)


def test_program_of_the_same_version(context):
    blob = context.compile(dense(0)[0]).serialize()
    assert compatibility_of(context, blob) is Compatibility.IDENTICAL
    check_computes(context, blob)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("other", "answer"),
    [
        ("older", Compatibility.COMPATIBLE),
        ("newer", Compatibility.RECOMPILE),
        ("other chip", Compatibility.INCOMPATIBLE),
    ],
)
def test_program_of_another_version(context, folders, other, answer):
    blob = written(folders[other])
    assert compatibility_of(context, blob) is answer
    if answer is Compatibility.COMPATIBLE:
        check_computes(context, blob)
    else:
        with pytest.raises(IncompatibleProgramError, match="of another device or version; compile the model again"):
            context.deserialize(blob)


def test_serialized_program_is_deserialized(context):
    """The bytes may be unaligned, and overwritten after deserializing."""
    blob = bytearray(b"1" + context.compile(dense(0)[0]).serialize())
    program = context.deserialize(bytes(memoryview(blob)[1:]))
    blob[:] = bytes(len(blob))
    assert compatibility_of(context, program.serialize()) is Compatibility.IDENTICAL
    check_computes(context, program.serialize())


def test_bound_program_outlives_the_deserialized_one(context):
    program = context.deserialize(context.compile(dense(0)[0]).serialize())
    model, expected = dense(1)
    bound = context.clone_with_constants(program, model)
    program.close()
    with closing(bound), closing(bound.create_execution()) as execution:
        np.testing.assert_allclose(execution.compute([X])[0], expected(X), rtol=1e-5, atol=1e-6)


def test_truncated_programs_are_refused(context):
    border, contents = inside(context.compile(dense(0)[0]).serialize())
    for length in range(len(contents)):
        blob = seal("acme_c", border, [contents[:length]])
        assert compatibility_of(context, blob) is (
            Compatibility.INCOMPATIBLE if length < HEAD_BYTES else Compatibility.RECOMPILE
        )
        with pytest.raises(IncompatibleProgramError):
            context.deserialize(blob)
    blob = seal("acme_c", border, [contents])
    assert all(compatibility_of(context, blob[:length]) is not Compatibility.IDENTICAL for length in range(len(blob)))


def test_any_changed_byte_is_refused(context):
    border, contents = inside(context.compile(dense(0)[0]).serialize())
    for place in range(len(contents)):
        changed = contents[:place] + bytes([contents[place] ^ 0x55]) + contents[place + 1 :]
        blob = seal("acme_c", border, [changed])
        if place < 20:
            assert compatibility_of(context, blob) in (Compatibility.INCOMPATIBLE, Compatibility.RECOMPILE)
        # No release becomes a smaller one by this change.
        with pytest.raises(IncompatibleProgramError):
            context.deserialize(blob)


def test_random_bytes(context):
    border = inside(context.compile(dense(0)[0]).serialize())[0]
    random = Random(5)
    for length in (0, 1, 39, 40, 41, 500):
        noise = random.randbytes(length)
        assert compatibility_of(context, noise) is Compatibility.INCOMPATIBLE
        assert compatibility_of(context, seal("acme_c", border, [noise])) is Compatibility.INCOMPATIBLE
        with pytest.raises(IncompatibleProgramError):
            context.deserialize(seal("acme_c", border, [noise]))


def test_counts_out_of_bounds(context):
    """The checksum is valid, so only bounds checks catch these."""
    assert check_bounds(context) > 100


def test_unsupported_program_is_not_deserialized(device, context):
    blob = context.compile(dense(0)[0]).serialize()
    with pytest.raises(IncompatibleProgramError, match="RELU is switched off"):
        device.create_context({**OPTIONS, "switched_off": ("RELU",)}).deserialize(blob)
    with pytest.raises(IncompatibleProgramError, match="memory_bytes is 256"):
        device.create_context({**OPTIONS, "memory_bytes": 256}).deserialize(blob)


def test_program_of_another_driver_is_incompatible(context, trial):
    border, contents = inside(context.compile(dense(0)[0]).serialize())
    assert compatibility_of(context, seal("other_c", border, [contents])) is Compatibility.INCOMPATIBLE
    blob = seal("acme_c", border, [contents])
    assert compatibility_of(context, blob.replace(b'"driver"', b'"drivel"')) is Compatibility.INCOMPATIBLE
    assert (
        compatibility_of(context, blob.replace(json.dumps("acme_c").encode(), b"\xff" * 8))
        is Compatibility.INCOMPATIBLE
    )


def assigning():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (2, 3)))
    return builder.finish(builder.add_operation("ASSIGN", (x,)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (0, None),
        (1, Compatibility.IDENTICAL),
        (2, Compatibility.COMPATIBLE),
        (3, Compatibility.RECOMPILE),
        (4, Compatibility.INCOMPATIBLE),
        (5, Compatibility.RECOMPILE),
        (-7, Compatibility.RECOMPILE),
    ],
)
def test_compatibility_codes(trial, code, answer):
    blob = trial("").compile(assigning()).serialize()
    assert compatibility_of(trial(f"says{code}"), blob) is answer


def test_driver_with_an_older_header_reports_no_compatibility(trial):
    """The driver's function group ends before check_blob, which must not be called."""
    older = trial("", "-DGROUP_SIZE=offsetof(NNAdapterSerializationFunctions, check_blob)")
    blob = older.compile(assigning()).serialize()
    assert compatibility_of(older, blob) is None
    np.testing.assert_array_equal(older.deserialize(blob).create_execution().compute([X[:, :3]])[0], X[:, :3])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "note"),
    [
        pytest.param("older", None, marks=pytest.mark.sweep),
        ("newer", "segment 0 was compiled again for acme_c: driver, device or options have changed"),
        (
            "other chip",
            "segment 0 was compiled again for acme_c: its program is from another device or driver version",
        ),
    ],
)
def test_a_compiled_model_of_another_version(tmp_path, acme, folders, other, note):
    """A process has one driver per name, so a child process compiles with the other version."""
    onnx.save(model_of("twice"), tmp_path / "m.onnx")
    command = [sys.executable, "-m", "nnadapter", "compile", tmp_path / "m.onnx", "-d", acme, "-o", tmp_path / "f"]
    environment = {**os.environ, "NNADAPTER_DRIVER_PATH": str(folders[other]), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    feeds = feeds_of(model_of("twice"))
    with nna.InferenceSession(tmp_path / "f") as session:
        np.testing.assert_array_equal(session.run(None, feeds)[0], np.maximum(feeds["x"], 0))
        assert session.report().notes == ((note,) if note else ())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_compiled_files_compute_the_same(tmp_path, acme, name):
    model = model_of(name)
    feeds = feeds_of(model)
    with nna.InferenceSession(model, devices=acme) as session:
        expected = session.run(None, feeds)
    nna.compile(model, tmp_path / "f", devices=acme)
    with nna.InferenceSession(tmp_path / "f") as session:
        for ours, theirs in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert session.report().notes == ()
