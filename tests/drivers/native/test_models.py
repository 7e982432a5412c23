"""Models in C structures, read by address as a driver reads them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from nnadapter.drivers.native import CLASSES, DATA_TYPES, AttributeCode, Holder, aligned, build, read_pointers
from nnadapter.ir import ABSENT, DataType, ModelBuilder, OperandType, Quantization
from tests.every import for_every


def at(name, address):
    return CLASSES[name].from_address(address)


def numbers(type_, address, count):
    return list((type_ * count).from_address(address)) if count else []


def built(model):
    holder = Holder()
    return holder, at("Model", build(model, holder))


def operands_of(c_model):
    return [at("Operand", pointer) for pointer in read_pointers(c_model.operands, c_model.operand_count)]


@pytest.fixture
def model():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (1, 3, 8, 9)))
    weight = builder.add_constant("filter", np.ones((4, 3, 3, 2), np.float32))
    (y,) = builder.add_operation("CONV_2D", (x, weight, ABSENT), {"pads": (1, 2, 3, 4)}, origins=["first", "zweiter ü"])
    (z,) = builder.add_operation("ELU", (y,), {"alpha": 0.25}, outputs=["z"])
    return builder.finish([z, y])


def test_structure_and_names(model):
    holder, c_model = built(model)
    operations = [at("Operation", pointer) for pointer in read_pointers(c_model.operations, c_model.operation_count)]
    assert [operation.type for operation in operations] == [b"CONV_2D", b"ELU"]
    for ours, theirs in zip(model.operations, operations, strict=True):
        assert numbers(ctypes.c_int32, theirs.inputs, theirs.input_count) == list(ours.inputs)
        assert numbers(ctypes.c_int32, theirs.outputs, theirs.output_count) == list(ours.outputs)
    texts = read_pointers(operations[0].origins, operations[0].origin_count)
    assert [ctypes.string_at(pointer).decode() for pointer in texts] == ["first", "zweiter ü"]
    assert numbers(ctypes.c_int32, c_model.outputs, c_model.output_count) == list(model.outputs)
    assert holder


def test_operands(model):
    holder, c_model = built(model)
    for ours, theirs in zip(model.operands, operands_of(c_model), strict=True):
        assert theirs.name.decode() == ours.name
        assert theirs.data_type == DATA_TYPES[ours.type.dtype]
        assert numbers(ctypes.c_int64, theirs.dimensions, theirs.rank) == list(ours.type.dimensions)
        assert theirs.bytes == ours.type.nbytes
        assert theirs.size == ctypes.sizeof(theirs)
        assert theirs.data == (None if ours.value is None else ours.value.ctypes.data), "constants are not copied"
    assert holder


def test_attributes_have_names_kinds_and_values(model):
    holder, c_model = built(model)
    first, second = (at("Operation", pointer) for pointer in read_pointers(c_model.operations, 2))
    attributes = {}
    for operation in (first, second):
        for address in read_pointers(operation.attributes, operation.attribute_count):
            attribute = at("Attribute", address)
            attributes[attribute.name.decode()] = attribute
    assert attributes.keys() == {*model.operations[0].attributes, *model.operations[1].attributes}
    assert numbers(ctypes.c_int64, attributes["pads"].value.integers, attributes["pads"].count) == [1, 2, 3, 4]
    assert attributes["pads"].kind == AttributeCode.KIND_INTS and attributes["group"].kind == AttributeCode.KIND_INT
    assert attributes["group"].value.integer == 1 and attributes["alpha"].value.real == 0.25
    assert attributes["fuse_code"].value.string == b"none"
    assert attributes["fuse_parameters"].count == 0 and attributes["fuse_parameters"].value.reals is None
    assert holder


@for_every(dtype=DataType, dimensions=[(3,), (), (0, 2)])
def test_constants_of_every_type(dtype, dimensions):
    builder = ModelBuilder()
    array = np.ones(dimensions).astype(dtype.array_type)
    constant = builder.add_constant("c", array)
    holder, c_model = built(builder.finish(builder.add_operation("ASSIGN", (constant,))))
    operand = operands_of(c_model)[constant]
    assert operand.rank == len(dimensions) and operand.bytes == OperandType(dtype, dimensions).nbytes
    if array.size == 0:
        assert operand.data is None
    elif dtype in (DataType.INT4, DataType.UINT4):
        assert ctypes.string_at(operand.data, operand.bytes) == (b"\x11\x01" if dimensions else b"\x01")
    else:
        assert ctypes.string_at(operand.data, operand.bytes) == array.tobytes()
    assert holder


@pytest.mark.parametrize("axis", [None, 0])
def test_quantization(axis):
    builder = ModelBuilder()
    count = 1 if axis is None else 2
    quantization = Quantization(scale=(0.5,) * count, zero_point=(3,) * count, axis=axis)
    constant = builder.add_constant("c", np.zeros((2, 2), np.int8), quantization)
    holder, c_model = built(builder.finish(builder.add_operation("DEQUANTIZE", (constant,))))
    theirs = at("Quantization", operands_of(c_model)[constant].quantization)
    assert theirs.axis == (-1 if axis is None else axis)
    assert numbers(ctypes.c_double, theirs.scales, theirs.count) == [0.5] * count
    assert numbers(ctypes.c_int64, theirs.zero_points, theirs.count) == [3] * count
    assert holder


def test_elements_are_aligned():
    shifted = np.frombuffer(b"." + np.arange(3, dtype=np.float64).tobytes(), np.float64, offset=1)
    assert not shifted.flags.aligned and aligned(shifted).flags.aligned
    np.testing.assert_array_equal(aligned(shifted), shifted)
