"""Programs of C drivers bound to other constants."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import Control
from nnadapter.drivers.isolation import IsolatedDevice
from nnadapter.drivers.native import NativeDriver
from nnadapter.errors import CancelledError, CompilationError, DeviceLostError, DriverError
from nnadapter.ir import DataType, ModelBuilder, OperandType
from tests.c_compiler import compile_library, needs_compiler
from tests.drivers.native.acme_models import OPTIONS, ORDERS, check_bound, dense, feeds_of, model_of

TRIAL = Path(__file__).with_name("trial.c")
OLDER = "-DTABLE_SIZE=offsetof(NNAdapterDriver, clone_with_constants)"
X = np.random.default_rng(2).standard_normal((2, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Return a function that opens the trial driver, compiled with flags."""

    def opened(*flags):
        folder = tmp_path_factory.mktemp("trial")
        return NativeDriver("trial_c", compile_library(folder / "nnadapter_trial.so", *flags, TRIAL)).open("")

    return opened


def assigning(name):
    builder = ModelBuilder()
    x = builder.add_input(name, OperandType(DataType.FLOAT32, (2, 3)))
    return builder.finish(builder.add_operation("ASSIGN", (x,)))


@pytest.mark.parametrize("order", ORDERS)
def test_bound_programs_survive_any_order_of_destruction(acme, order):
    check_bound(order)


def test_layers_share_a_program_in_a_session(acme):
    with nna.InferenceSession(model_of("layers"), devices=acme) as session:
        session.run(None, feeds_of(model_of("layers")))
        mine = [segment for segment in session.report().segments if segment.device == acme]
    assert [segment.program_of for segment in mine] == [None, mine[0].index, mine[0].index]


@pytest.mark.slow
def test_programs_are_bound_in_an_isolated_process(acme):
    (first, _), (second, expected) = dense(0), dense(1)
    with closing(IsolatedDevice(acme)) as device:
        context = device.create_context(OPTIONS)
        program = context.compile(first)
        bound = context.clone_with_constants(program, second)
        program.close()
        (result,) = bound.create_execution().compute([X])
    np.testing.assert_allclose(result, expected(X), rtol=1e-5, atol=1e-6)


def test_programs_come_and_go_in_many_threads(device):
    """Concurrent binds and destroys must keep the shared reference count right."""
    context = device.create_context(OPTIONS)
    program = context.compile(dense(0)[0])
    wrong = []

    def work(seed):
        model, expected = dense(seed)
        for _ in range(20):
            with (
                closing(context.clone_with_constants(program, model)) as bound,
                closing(bound.create_execution()) as execution,
            ):
                wrong.append(not np.allclose(execution.compute([X])[0], expected(X), rtol=1e-5, atol=1e-6))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 80 and not any(wrong)
    np.testing.assert_allclose(program.create_execution().compute([X])[0], dense(0)[1](X), rtol=1e-5, atol=1e-6)


def test_deadline_and_cancelling(device):
    context = device.create_context(OPTIONS)
    program, model = context.compile(dense(0)[0]), dense(1)[0]
    with pytest.raises(CancelledError, match="cancelled"):
        context.bind_within(program, model, Control(cancelled=lambda: True))
    with pytest.raises(CompilationError, match="not done within 1e-12 s"):
        context.bind_within(program, model, Control(deadline_seconds=1e-12))
    assert context.bind_within(program, model, Control(deadline_seconds=60)) is not None


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("bind_fails", CompilationError, "trial_c: a sentence"),
        ("bind_invalid", CompilationError, "clone_with_constants returned INVALID_ARGUMENT without a message"),
        ("bind_lost", DeviceLostError, "clone_with_constants returned DEVICE_LOST"),
        ("bind_same", DriverError, "clone_with_constants returned the original program, expected a new one"),
    ],
)
@needs_compiler
def test_failing_bind_raises_and_keeps_the_program(trial, fault, error, message):
    context = trial().create_context({"fault": fault})
    program = context.compile(assigning("x"))
    with pytest.raises(error, match=message) as caught:
        context.clone_with_constants(program, assigning("y"))
    assert type(caught.value) is error
    assert program.create_execution().compute([np.ones((2, 3), np.float32)])[0].all()


@needs_compiler
@pytest.mark.parametrize(
    ("flags", "fault", "binds"),
    [((), "", True), ((), "bind_null", False), ((OLDER,), "", False)],
    ids=["binds", "leaves null", "has an older table"],
)
def test_bind_compiles_nothing(trial, flags, fault, binds):
    context = trial(*flags).create_context({"fault": fault})
    program, model = context.compile(assigning("x")), assigning("y")
    bound = context.clone_with_constants(program, model)
    assert (bound is not None) == binds
    execution = (bound or context.compile(model)).create_execution()
    assert execution.compute([np.ones((2, 3), np.float32)])[0].all()
    assert program.serialize() is not None, "what stands before the missing function is there"
