from __future__ import annotations

import mmap
import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir import (
    ABSENT,
    SCHEMAS,
    AttributeKind,
    DataType,
    Layout,
    ModelBuilder,
    OperandType,
    Operation,
    Quantization,
)
from nnadapter.ir.protobuf import from_bytes, load, new, save, to_bytes
from nnadapter.ir.protobuf.serialization import _read_operation, _write_operation
from tests.converters import test_onnx_suite as suite
from tests.every import for_every
from tests.ir.protobuf.saved_models import FLOAT, assert_same, network, only

_VALUES = {
    AttributeKind.BOOL: True,
    AttributeKind.INT: -(2**63),
    AttributeKind.FLOAT: float("-inf"),
    AttributeKind.STRING: "µ",
    AttributeKind.INTS: (2**63 - 1, -3),
    AttributeKind.FLOATS: (0.1, -0.0),
}


def round_trip(model):
    contents, data = to_bytes(model)
    return from_bytes(contents, {"weights": data})


def value_of(attribute):
    if attribute.choices:
        return attribute.choices[-1]
    value = _VALUES[attribute.kind]
    return value if attribute.length is None else value[:1] * attribute.length


@for_every(row=SCHEMAS.values(), empty=[False, True])
def test_operations_of_every_schema_round_trip(row, empty):
    attributes = {attribute.name: value_of(attribute) for attribute in row.attributes}
    if empty:
        attributes |= {
            attribute.name: ()
            for attribute in row.attributes
            if attribute.kind in (AttributeKind.INTS, AttributeKind.FLOATS) and not attribute.length
        }
    operation = Operation(row.type, (7, ABSENT, 0), (8, 9), attributes, ("node", "größer"))
    message = new("Operation")
    _write_operation(message, operation)
    read = _read_operation(message)
    assert [getattr(read, name) for name in Operation.__slots__] == [
        getattr(operation, name) for name in Operation.__slots__
    ]
    assert list(map(type, read.attributes.values())) == list(map(type, attributes.values()))


@pytest.mark.slow
def test_converted_onnx_operator_tests_round_trip():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = [case for case in load_model_tests(kind="node") if case.model is not None and suite._is_plain(case)]
    models = [conversion.model for conversion, _ in map(suite._converted, cases) if suite._reason(conversion) is None]
    assert len(models) > 550
    for model in models:
        assert_same(model, round_trip(model))


@for_every(dtype=DataType, dimensions=[(), (1,), (5,), (3, 5), (0,), (2, 0, 3)])
def test_every_data_type(dtype, dimensions):
    count = int(np.prod(dimensions))
    values = np.arange(-(count // 2), count - count // 2) if dtype.value[0] not in "ub" else np.arange(count)
    model = only(None, values.reshape(dimensions).astype(dtype.array_type))
    assert_same(model, round_trip(model))


@pytest.mark.parametrize(("dtype", "first", "beyond"), [(DataType.INT4, -8, 8), (DataType.UINT4, 0, 16)])
def test_4_bit_elements_are_packed(dtype, first, beyond):
    value = np.arange(first, beyond).astype(dtype.array_type)
    contents, data = to_bytes(only(None, value))
    assert [data[0] & 15, data[0] >> 4] == [first & 15, first + 1 & 15] and len(data) == 64
    read = from_bytes(contents, {"weights": data}).operands[0].value
    assert read.astype(int).tolist() == list(range(first, beyond)) and (read == value).all()


def test_nonfinite_numbers_keep_every_bit():
    patterns = np.arange(256, dtype=np.uint8)
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        assert_same(only(None, patterns.view(dtype)), round_trip(only(None, patterns.view(dtype))))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(
    "quantization",
    [
        None,
        Quantization(scale=(0.1,), zero_point=(-128,)),
        Quantization(scale=(0.1, 1e-30, 3e38), zero_point=(0, 127, -1), axis=0),
        Quantization(scale=(0.5, 0.25), zero_point=(0, 0), axis=1),
    ],
)
def test_layouts_and_quantization(layout, quantization):
    model = only(OperandType(DataType.INT8, (3, 2, 4, 5), layout, quantization))
    read = round_trip(model)
    assert_same(model, read)
    assert read.operands[0].type == model.operands[0].type


def test_big_endian_arrays_are_written_little_endian():
    model = only(None, np.array([1, 2, 3], ">f4"))
    assert round_trip(model).operands[0].value.tolist() == [1, 2, 3]


def test_files_are_mapped_and_store_equal_contents_once(tmp_path):
    model = network()
    save(model, tmp_path / "net.model")
    (data,) = tmp_path.glob("net.model.*.weights")
    assert data.stat().st_size == 448 + 64  # filter, bias; `again` is bias
    read = load(tmp_path / "net.model")
    assert_same(model, read)
    values = {operand.name: operand.value for operand in read.operands if operand.value is not None}
    assert np.shares_memory(values["bias"], values["again"])
    assert all(type(value) is np.ndarray and value.ctypes.data % 64 == 0 for value in values.values())
    base = values["filter"]
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj, mmap.mmap)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["net.model", data.name])


def test_a_model_without_weights_is_one_file(tmp_path):
    save(only(OperandType(FLOAT, (2,))), tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert_same(only(OperandType(FLOAT, (2,))), load(str(tmp_path / "m")))


def test_a_model_may_be_replaced_while_it_is_in_use(tmp_path):
    save(network(), tmp_path / "m")
    read = load(tmp_path / "m")
    save(network(), tmp_path / "m")
    save(only(None, np.ones(3, np.float32)), tmp_path / "m")
    assert_same(network(), read)
    assert load(tmp_path / "m").operands[0].value.tolist() == [1, 1, 1]


def test_the_same_model_gives_the_same_bytes():
    assert to_bytes(network()) == to_bytes(network()) == to_bytes(round_trip(network()))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=8))
def test_equal_constants_share_storage(picks):
    builder = ModelBuilder()
    dtypes = {"a": np.float32, "b": np.int32, "c": ml_dtypes.int4}
    results = [
        builder.add_constant(f"{position}", np.full(size, 1, dtypes[which]))
        for position, (which, size) in enumerate(picks)
    ]
    model = builder.finish(results)
    _, data = to_bytes(model)
    distinct = {operand.value.tobytes() for operand in model.operands if operand.value.size}
    assert len(data) <= 64 * len(distinct)
    assert_same(model, round_trip(model))


@pytest.mark.slow
def test_reading_and_writing_import_no_onnx(tmp_path):
    save(network(), tmp_path / "m")
    code = (
        "import sys; from nnadapter.ir.protobuf import load, save; save(load(sys.argv[1]), sys.argv[1]); "
        "print(sorted({'onnx', 'onnxruntime', 'ml_dtypes'} & set(sys.modules)))"
    )
    process = subprocess.run([sys.executable, "-c", code, tmp_path / "m"], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"
