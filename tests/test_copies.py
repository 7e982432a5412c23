"""Zero-copy between devices that work in host memory, checked by array addresses."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import HEAD, SANDWICH, numbers, parse, run_whole
from tests.trial_driver import HANDED

RECORDED = {"recorded": True}
TURNS = [("trial:0", {**RECORDED, "only": "RELU,NEG,ADD"}), ("trial:1", {**RECORDED, "only": "SIN,COS"})]
INSIDE = SANDWICH.replace("(float[N, 4] y)", "(float[N, 4] a, float[N, 4] b, float[N, 4] c, float[N, 4] y)")
"""The same model with all intermediate values as outputs."""


@pytest.fixture
def handed():
    """Yield the recorded inputs and outputs of the trial driver's executions, in order."""
    HANDED.clear()
    yield HANDED
    HANDED.clear()


def address(array):
    return array.__array_interface__["data"][0]


def run(text, feed, devices=TURNS):
    with nna.InferenceSession(parse(text), devices=devices) as session:
        results = session.run(None, feed)
    for result, expected in zip(results, run_whole(parse(text), feed), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    return results


@pytest.mark.slow
def test_device_reads_the_memory_of_the_caller(handed):
    x = numbers(3, 4)
    run(SANDWICH, {"x": x})
    ((given, *_), *_) = [inputs for inputs, _ in handed]
    assert address(given) == address(x) and np.shares_memory(given, x)


def test_results_reach_steps_and_caller_without_copies(handed):
    (y,) = run(SANDWICH, {"x": numbers(3, 4)})
    assert len(handed) == 5
    made = {address(result) for _, results in handed for result in results}
    between = [address(array) for inputs, _ in handed[1:] for array in inputs]
    assert len(between) == 5 and set(between) < made
    assert y is handed[-1][1][0]


def test_results_of_the_cpu_are_not_copied(handed):
    a, b, c, y = run(INSIDE, {"x": numbers(3, 4)}, devices=TURNS[:1])
    relu, neg, add = handed
    assert address(relu[1][0]) == address(a)
    assert address(neg[0][0]) == address(b) and address(neg[1][0]) == address(c)
    assert add[1][0] is y and address(a) in map(address, add[0])


@pytest.mark.parametrize(
    ("given", "copied"),
    [
        (numbers(3, 4), False),
        (np.ascontiguousarray(numbers(6, 4))[2:5], False),
        (np.asfortranarray(numbers(3, 4)), True),
        (numbers(3, 8)[:, ::2], True),
        (numbers(3, 4)[::-1], True),
    ],
)
def test_only_noncontiguous_inputs_are_copied(handed, given, copied):
    run(SANDWICH, {"x": given})
    assert np.shares_memory(handed[0][0][0], given) is not copied


def test_input_as_output_is_copied_once(handed):
    x = numbers(2)
    text = f"{HEAD} g (float[2] x) => (float[2] x, float[2] y) {{ y = Neg(x) }}"
    z, y = run(text, {"x": x}, devices=("trial", RECORDED))
    assert not np.shares_memory(z, x) and address(handed[0][0][0]) == address(x) and handed[0][1][0] is y
