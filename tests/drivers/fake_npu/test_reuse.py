"""A template filled for other sizes is what lowering would have made of them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
import rapidocr
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.backend.test.loader import load_model_tests

from nnadapter.conversions import Conversions, converted
from nnadapter.drivers.fake_npu.graph import NpuGraph
from nnadapter.drivers.fake_npu.lowering import lower
from nnadapter.drivers.fake_npu.reuse import Groups, Lowerings, Template
from nnadapter.drivers.fake_npu.verdicts import judge
from nnadapter.errors import NNAdapterError
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.model import Model
from nnadapter.ir.operand import DataType, OperandType, freeze
from nnadapter.ir.structure import numbers
from nnadapter.preparation.prepare import prepare, specialise

OCR = Path(rapidocr.__file__).parent / "models"
WEIGHT = freeze(np.random.default_rng(0).random((4, 3, 3, 3), np.float32))
SIZES = st.tuples(st.integers(1, 4), st.integers(3, 30), st.integers(3, 30))


def convolution(count: int, height: int, width: int) -> Model:
    builder = ModelBuilder()
    image = builder.add_input("x", OperandType(DataType.FLOAT32, (count, 3, height, width)))
    weight = builder.add_constant("w", WEIGHT)
    (made,) = builder.add_operation("CONV_2D", (image, weight), {"pads": (1, 1, 1, 1)})
    (relu,) = builder.add_operation("RELU", (made,))
    (rows,) = builder.add_operation("RESHAPE", (relu,), {"shape": (count, 4 * height * width)})
    (total,) = builder.add_operation("SOFTMAX", (rows,), {"axis": 1})
    return builder.finish([total])


def same(found: NpuGraph, expected: NpuGraph) -> None:
    assert [tensor.type for tensor in found.tensors] == [tensor.type for tensor in expected.tensors]
    assert [tensor.view_of for tensor in found.tensors] == [tensor.view_of for tensor in expected.tensors]
    assert found.instructions == expected.instructions
    for one, other in zip(found.tensors, expected.tensors, strict=True):
        assert one.value is other.value or np.array_equal(one.value, other.value)


@given(st.lists(SIZES, min_size=2, max_size=6))
@settings(max_examples=30, deadline=None)
def test_other_sizes(sizes: Sequence[tuple[int, int, int]]) -> None:
    lowerings = Lowerings(half_precision=False)
    for size in sizes:
        model = convolution(*size)
        same(lowerings.lower(model).graph, lower(model, half_precision=False).graph)


def test_lowering_happens_once_for_sizes_that_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        "nnadapter.drivers.fake_npu.reuse.lower", lambda *given, **more: calls.append(1) or lower(*given, **more)
    )
    lowerings = Lowerings(half_precision=False)
    for height in range(5, 25):
        lowerings.lower(convolution(2, height, 40))
    assert len(calls) == 2, "the first as it is, the second with traced sizes"


def test_fixed_sizes_are_lowered_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnadapter.drivers.fake_npu.reuse.Template", None)
    lowerings = Lowerings(half_precision=False)
    for _ in range(3):
        lowerings.lower(convolution(2, 5, 6))


OCR_SHAPES = {
    "det": [(1, 3, 320, 320), (1, 3, 384, 640), (1, 3, 64, 96)],
    "rec": [(1, 3, 48, 200), (6, 3, 48, 320), (3, 3, 48, 328), (1, 3, 48, 1000)],
    "cls": [(1, 3, 48, 192), (2, 3, 48, 192), (6, 3, 48, 192)],
}


@pytest.mark.parametrize("kind", OCR_SHAPES)
def test_text_recognition_models(kind: str) -> None:
    prepared = prepare(onnx.load(next(path for path in sorted(OCR.glob("*.onnx")) if kind in path.stem)))
    conversions, lowerings = Conversions(prepared), Lowerings(half_precision=False)
    for shape in OCR_SHAPES[kind]:
        filled = lowerings.lower(conversions.of({"x": shape})[1].model)
        plain = lower(converted(specialise(prepared, {"x": shape})).model, half_precision=False)
        same(filled.graph, plain.graph)
        assert filled.runs_as == plain.runs_as


def cases() -> Iterator[tuple[str, Model]]:
    """ONNX's own operator tests, as far as the device takes them whole."""
    for case in load_model_tests(kind="node"):
        shapes = {
            value.name: tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
            for value in case.model.graph.input
        }
        with suppress(NNAdapterError):
            model = converted(specialise(prepare(case.model), shapes)).model
            if model.operations and all(judge(model, operation, ()) for operation in model.operations):
                yield case.name, model


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # onnx makes its cases with overflows
def test_every_lowering_works_with_traced_numbers() -> None:
    seen = 0
    for name, model in cases():
        values = numbers(model)
        groups: dict[object, list[int]] = {}
        for place, value in enumerate(values):
            groups.setdefault((type(value), value), []).append(place)
        template = Template(model, Groups.of(values, list(groups.values())), values, half_precision=False)
        filled, plain = template.filled(values), lower(model, half_precision=False)
        assert filled is not None, name
        same(filled.graph, plain.graph)
        seen += 1
    assert seen > 600
