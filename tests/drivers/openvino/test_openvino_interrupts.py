"""Interrupts must stop the engine before its memory is freed."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from nnadapter.drivers import Control
from nnadapter.errors import ExecutionError
from tests.drivers.openvino.harness import context, model_of, read_only

PRODUCTS = "(float[900,900] x) => (float[900,900] y) { a = MatMul(x, x) b = MatMul(a, x) c = MatMul(b, x) y = Sin(c) }"


def interrupt():
    raise KeyboardInterrupt


def rests(execution):
    try:
        return execution._request.wait_for(0)
    except RuntimeError as error:
        return "was canceled" in str(error)


def test_an_interrupt_stops_the_engine():
    opened = context()
    program = opened.compile(model_of(PRODUCTS))
    execution = program.create_execution()
    x = read_only(np.eye(900, dtype=np.float32))
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            execution.compute_within([x], Control(cancelled=interrupt))
        assert rests(execution), "the engine still works"
    for result in (execution.compute([x]), execution.compute_within([x], Control(cancelled=lambda: False))):
        np.testing.assert_allclose(result[0], np.sin(x), rtol=1e-5, atol=1e-6)
    execution.close()
    program.close()


LAYERS = " ".join(f"m{at} = MatMul(r{at}, w) r{at + 1} = Relu(m{at})" for at in range(12))
DYNAMIC = f"(float[n, 32] r0, float[32, 32] w) => (float[n, 32] y) {{ {LAYERS} y = Sin(r12) }}"
OF_DATA = f"""(float[30000, 32] x, float[32, 32] w) => (float[32] y)
<int64[2] rows = {{-1, 32}}, int64[1] first = {{0}}> {{
    found = NonZero(x) turned = Transpose(found) kept = GatherND(x, turned) r0 = Reshape(kept, rows) {LAYERS}
    y = ReduceSum<keepdims = 0>(r12, first)
}}"""


def stopping_after(looks, error):
    """Return a callback that stops a run after some polls."""
    remaining = iter(range(looks))

    def stopped():
        is_over = next(remaining, None) is None
        if is_over and error is KeyboardInterrupt:
            raise error
        return is_over

    return stopped


def rows_of(count, *, of):
    x = np.zeros((of, 32), np.float32)
    x[:count] = 1
    return read_only(x)


@pytest.mark.parametrize(
    ("text", "few", "many"),
    [
        (DYNAMIC, rows_of(3, of=3), rows_of(30000, of=30000)),
        (OF_DATA, rows_of(3, of=30000), rows_of(30000, of=30000)),
    ],
    ids=["open sizes", "sizes of data"],
)
@pytest.mark.parametrize("error", [ExecutionError, KeyboardInterrupt])
def test_stopped_run_does_not_affect_runs_at_other_sizes(text, few, many, error):
    execution = context().compile(model_of(text)).create_execution()
    w = read_only(np.eye(32, dtype=np.float32))
    expected = {id(x): execution.compute([x, w])[0].copy() for x in (many, few)}
    for looks in range(8):
        with suppress(error):
            execution.compute_within([many, w], Control(cancelled=stopping_after(looks, error)))
        for x in (few, many):
            np.testing.assert_array_equal(execution.compute([x, w])[0], expected[id(x)])


def test_run_with_static_shapes_is_stopped():
    execution = context().compile(model_of(PRODUCTS)).create_execution()
    with pytest.raises(ExecutionError, match="stopped"):
        execution.compute_within([read_only(np.eye(900, dtype=np.float32))], Control(cancelled=lambda: True))
