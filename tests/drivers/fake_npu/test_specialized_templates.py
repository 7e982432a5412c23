"""Specialized templates, compared with lowering at the same sizes."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.backend.test.loader import load_model_tests

from nnadapter.candidates import Conversions, converted, prepare, with_atoms
from nnadapter.drivers.fake_npu import Groups, Lowerings, LoweringTemplate, NpuGraph, judge, lower, weight_bytes
from nnadapter.errors import NNAdapterError
from nnadapter.ir import DataType, Lifetime, Model, ModelBuilder, Operand, OperandType
from nnadapter.ir.operand import freeze
from nnadapter.ir.structure import numbers, with_numbers
from nnadapter.ir.symbolic_numbers import is_symbolic
from nnadapter.onnx.preparation import specialize
from tests.models import OCR_SHAPES, ocr_model

WEIGHT = freeze(np.random.default_rng(0).random((4, 3, 3, 3), np.float32))
SIZES = st.tuples(st.integers(1, 4), st.integers(3, 30), st.integers(3, 30))


def convolution(count: int, height: int, width: int) -> Model:
    builder = ModelBuilder()
    image = builder.add_input("x", OperandType(DataType.FLOAT32, (count, 3, height, width)))
    weight = builder.add_constant("w", WEIGHT)
    (result,) = builder.add_operation("CONV_2D", (image, weight), {"pads": (1, 1, 1, 1)})
    (relu,) = builder.add_operation("RELU", (result,))
    (rows,) = builder.add_operation("RESHAPE", (relu,), {"shape": (count, 4 * height * width)})
    (total,) = builder.add_operation("SOFTMAX", (rows,), {"axis": 1})
    return builder.finish([total])


def same(graph: NpuGraph, expected: NpuGraph) -> None:
    assert not any(is_symbolic(tensor.type.dimensions) for tensor in graph.tensors)
    assert not any(
        is_symbolic(value) for instruction in graph.instructions for value in instruction.parameters.values()
    )
    assert [tensor.type for tensor in graph.tensors] == [tensor.type for tensor in expected.tensors]
    assert [tensor.view_of for tensor in graph.tensors] == [tensor.view_of for tensor in expected.tensors]
    assert graph.instructions == expected.instructions
    for mine, other in zip(graph.with_contents().tensors, expected.tensors, strict=True):
        assert mine.value is other.value or np.array_equal(mine.value, other.value)


@given(st.lists(SIZES, min_size=2, max_size=6))
def test_reused_lowering_equals_a_new_one(sizes: Sequence[tuple[int, int, int]]) -> None:
    lowerings = Lowerings()
    for size in sizes:
        model = convolution(*size)
        same(lowerings.prepare(model).graph, lower(model).graph)


def test_sizes_without_guards_are_lowered_once() -> None:
    lowerings = Lowerings()
    lowerings.prepare(convolution(2, 4, 40))
    assert lowerings.templates == 1, "the first model does not say what varies"
    for height in range(5, 25):
        lowerings.prepare(convolution(2, height, 40))
        assert lowerings.templates == 2


def test_static_shapes_are_lowered_once() -> None:
    lowerings = Lowerings()
    for _ in range(3):
        lowerings.prepare(convolution(2, 5, 6))
    assert lowerings.templates == 1


def test_template_in_use_is_not_evicted() -> None:
    lowerings = Lowerings()
    for images in (2, 1, 3, 1, 4, 1, 5):
        same(lowerings.prepare(convolution(images, 5, 6)).graph, lower(convolution(images, 5, 6)).graph)
    assert lowerings.templates <= 3, "one for the first count alone"


def test_non_numeric_attributes_are_unchanged() -> None:
    def padded(width: int) -> Model:
        builder = ModelBuilder()
        x = builder.add_input("x", OperandType(DataType.FLOAT32, (2, width)))
        (pad,) = builder.add_operation("PAD", (x,), {"pads": (0, 1, 0, 1), "mode": "constant", "value": float("nan")})
        return builder.finish([pad])

    lowerings = Lowerings()
    for width in (3, 3, 4, 5, 6):
        (instruction,) = lowerings.prepare(padded(width)).graph.instructions
        assert np.isnan(instruction.parameters["value"])
    assert lowerings.templates == 2


def test_memory_of_cached_constants_is_bounded() -> None:
    lowerings = Lowerings()
    tables = []
    for size in range(1, 9):
        table = freeze(np.zeros((size, 1 << 20), np.float32))
        builder = ModelBuilder()
        x = builder.add_input("x", OperandType(DataType.FLOAT32, table.shape))
        (added,) = builder.add_operation("ADD", (x, builder.add_constant("table", table)))
        lowerings.prepare(builder.finish([added]))
        tables.append(weakref.ref(table))
        del table, builder
    assert sum(array.nbytes for table in tables[:-1] if (array := table()) is not None) <= 16 << 20


@pytest.mark.parametrize("kind", OCR_SHAPES)
def test_text_recognition_models(kind: str) -> None:
    prepared = prepare(ocr_model(kind))
    conversions, lowerings = Conversions(prepared), Lowerings()
    for shape in OCR_SHAPES[kind]:
        filled = lowerings.prepare(conversions.of({"x": shape})[1].model)
        specialized = specialize(prepared, {"x": shape})
        model = with_atoms(specialized, converted(specialized))[1].model
        plain = lower(model)
        same(filled.graph, plain.graph)
        assert filled.runs_as(model) == plain.runs_as(model)


EVERY = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.sweep)])


def cases(every: int) -> Iterator[tuple[str, Model]]:
    """Yield every `every`-th of ONNX's operator tests that the device supports entirely."""
    for case in load_model_tests(kind="node")[::every]:
        shapes = {
            value.name: tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
            for value in case.model.graph.input
        }
        with suppress(NNAdapterError):
            model = converted(specialize(prepare(case.model), shapes)).model
            if model.operations and all(judge(model, operation, ()) for operation in model.operations):
                yield case.name, model


def doubled(value: object) -> object:
    return value * 2 if type(value) is int and value > 1 else value


@pytest.mark.slow
@EVERY
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # onnx builds its cases with overflows
def test_every_lowering_works_with_symbolic_sizes(every: int) -> None:
    case_count = refitted = 0
    for name, model in cases(every):
        values = numbers(model)
        groups: dict[object, list[int]] = {}
        for place, value in enumerate(values):
            groups.setdefault((type(value), value), []).append(place)
        template = LoweringTemplate(model, Groups.of(values, list(groups.values())), values)
        filled = template.filled(model, values)
        assert filled is not None, name
        same(filled.graph, lower(model).graph)
        case_count += 1
        other = with_numbers(model, list(map(doubled, values)))
        with suppress(IndexError, ValueError):  # a doubled axis may be out of range: no such model exists
            refilled = template.filled(other, numbers(other))
            if refilled is not None:
                same(refilled.graph, lower(other).graph)
                refitted += 1
    assert case_count > 600 / every
    assert refitted > 200 / every


def with_weights(model: Model, seed: int) -> Model:
    """Return the model with random constants for all inputs except the first."""
    generator = np.random.default_rng(seed)
    operands = list(model.operands)
    for index in model.inputs[1:]:
        type_ = operands[index].type
        value = generator.integers(0, 3, type_.dimensions).astype(type_.dtype.array_type)
        operands[index] = Operand(operands[index].name, type_, Lifetime.CONSTANT, freeze(value))
    return Model(tuple(operands), model.operations, model.inputs[:1], model.outputs)


@pytest.mark.sweep
@EVERY
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_lowering_works_with_traced_constants(every: int) -> None:
    case_count = refitted = 0
    for name, model in cases(every):
        first, second = (with_weights(model, seed) for seed in range(2))
        if len(model.inputs) < 2 or not all(judge(first, operation, ()) for operation in first.operations):
            continue
        try:
            expected = [lower(variant).graph for variant in (first, second)]
        except NNAdapterError:
            continue  # the random contents are invalid for this model
        template = LoweringTemplate(first, Groups.of(numbers(first), ()), numbers(first))
        filled = template.filled(first, numbers(first))
        assert filled is not None, name
        same(filled.graph, expected[0])
        case_count += 1
        other = template.filled(second, numbers(second))
        if other is not None:
            same(other.graph, expected[1])
            refitted += 1
    assert case_count > 200 / every
    assert refitted > 150 / every


def test_a_context_holds_no_weights() -> None:
    lowerings, weights = Lowerings(), []
    for seed in range(4):
        model = layer(seed)
        lowerings.prepare(model)
        weights += [weakref.ref(operand.value) for operand in model.operands if operand.value is not None]
        del model
    assert lowerings.templates == 1
    assert not any(weight() is not None for weight in weights)


def layer(seed: int, width: int = 8) -> Model:
    generator, number = np.random.default_rng(seed), count()
    builder = ModelBuilder()

    def weight(*shape: int) -> int:
        return builder.add_constant(f"w{next(number)}", generator.random(shape, np.float32))

    x = builder.add_input(f"x{seed}", OperandType(DataType.FLOAT32, (1, 4, width)))
    (normal,) = builder.add_operation("LAYER_NORMALIZATION", (x, weight(width), weight(width)), {"axis": 2})
    (product,) = builder.add_operation("MAT_MUL", (normal, weight(width, width)))
    (shifted,) = builder.add_operation("ADD", (product, weight(width)))
    (bent,) = builder.add_operation("GELU", (shifted,))
    (total,) = builder.add_operation("ADD", (bent, x))
    return builder.finish([total])


def test_layers_are_lowered_once() -> None:
    lowerings = Lowerings()
    for seed in range(6):
        model = layer(seed)
        lowered, expected = lowerings.prepare(model), lower(model)
        same(lowered.graph, expected.graph)
        assert lowered.runs_as(model) == expected.runs_as(model)
        assert weight_bytes(lowered.graph) == weight_bytes(expected.graph)
    assert lowerings.templates == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=2, max_size=6))
def test_constants_that_affect_the_lowering_are_distinguished(rows: list[tuple[int, int, bool]]) -> None:
    lowerings = Lowerings()
    for factor, offset, equal in rows:
        builder = ModelBuilder()
        x = builder.add_input("x", OperandType(DataType.FLOAT32, (2, 3)))
        first = builder.add_constant("factor", np.full((1, 3), factor, np.float32))
        second = builder.add_constant("other", np.full((1, 3), factor if equal else 7, np.float32))
        third = builder.add_constant("offset", np.full(3, offset, np.float32))
        products = [builder.add_operation("MUL", (x, constant))[0] for constant in (first, second)]
        (total,) = builder.add_operation("ADD", (builder.add_operation("SUB", products)[0], third))
        model = builder.finish([total])
        same(lowerings.prepare(model).graph, lower(model).graph)
