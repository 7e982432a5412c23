"""Engine queries about similar nodes: few if the engine accepts them, complete if it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from nnadapter.drivers import Reason
from nnadapter.drivers.openvino import engine
from tests.drivers.openvino.harness import computed, context, model_of

SIZES = (8, 16, 24, 32)
RELUS = "".join(f"y{size} = Relu(x{size}) " for size in SIZES)
ALIKE = (
    f"({', '.join(f'float[1,{size}] x{size}' for size in SIZES)}) => "
    f"({', '.join(f'float[1,{size}] y{size}' for size in SIZES)}) {{ {RELUS} }}"
)


@pytest.fixture
def queried(monkeypatch):
    """Return the number of Relus in each query, and a set of numbers to refuse."""
    counts: list[int] = []

    class Watched:
        def __getattr__(self, name):
            return getattr(real, name)

        def query_model(self, model, *arguments):
            counts.append(sum(op.get_type_name() == "Relu" for op in model.get_ops()))
            return {} if refuses and counts[-1] in refuses else real.query_model(model, *arguments)

    real, refuses = engine.core(), set[int]()
    monkeypatch.setattr("nnadapter.drivers.openvino.engine.core", Watched)
    return counts, refuses


def test_nodes_that_differ_only_in_sizes_are_queried_once(queried):
    opened, (counts, _) = context(), queried
    assert all(opened.supported(model_of(ALIKE)))
    assert counts == [1]
    assert all(opened.supported(model_of(ALIKE)))
    assert counts == [1]


def test_all_are_queried_if_the_first_is_refused(queried):
    opened, (counts, refuses) = context(), queried
    refuses.add(1)
    assert all(opened.supported(model_of(ALIKE)))
    assert counts == [1, 4]


def test_refused_nodes_are_found_one_by_one(queried):
    opened, (counts, refuses) = context(), queried
    refuses.update((1, 2, 4))
    assert [verdict.reason for verdict in opened.supported(model_of(ALIKE))] == [Reason.DEVICE_REFUSED] * len(SIZES)
    assert counts == [1, 4, 2, 1, 1, 2, 1, 1]


def test_every_size_is_checked_for_differences(monkeypatch):
    counts = []

    def difference(part, model):
        counts.append(len(part.graph.output))
        return ""

    monkeypatch.setattr("nnadapter.drivers.openvino.compiler.difference", difference)
    assert all(context().supported(model_of(ALIKE)))
    assert counts == [4]


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("elements", [(128, 127), (128, 128), (512, 512)])
def test_shared_and_embedded_constants_agree(dtype, elements):
    rng = np.random.default_rng(0)
    name = {np.float32: "float", np.int32: "int32"}[dtype]
    rows, columns = elements
    weight = rng.integers(-9, 9, elements).astype(dtype)
    model = model_of(f"({name}[2,{rows},{columns}] x) => ({name}[2,{rows},{columns}] y) {{ y = Add(x, w) }}")
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    x = rng.integers(-9, 9, (2, *elements)).astype(dtype)
    (y,) = computed(context(), model, [x])
    np.testing.assert_array_equal(y, x + weight)


def test_refusal_survives_eviction_by_another_thread(queried, monkeypatch):
    """The answers' cache is bounded; when full, it is cleared."""
    monkeypatch.setattr("nnadapter.drivers.openvino.compiler._MOST_KNOWN", 1)
    opened, (_, refuses) = context(), queried
    refuses.add(1)
    relu, *other_models = (
        model_of(f"(float[2] x) => (float[2] y) {{ y = {item}(x) }}") for item in ("Relu", "Tanh", "Cos", "Abs")
    )
    assert not any(opened.supported(relu))
    relu_and_more = model_of("(float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Exp(x) }")
    asks = opened._asker._takes_at_once

    def between(*question):
        monkeypatch.setattr(opened._asker, "_takes_at_once", asks)
        for item in other_models:
            opened.supported(item)
        return asks(*question)

    monkeypatch.setattr(opened._asker, "_takes_at_once", between)
    assert [bool(item) for item in opened.supported(relu_and_more)] == [False, True]
