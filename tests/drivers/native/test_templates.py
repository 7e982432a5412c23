"""Specialized C models, compared with models built at the same sizes."""

from __future__ import annotations

import ctypes
import gc
import pickle

import numpy as np
import pytest

from nnadapter.drivers.native import CLASSES, AttributeCode, Holder, ModelTemplates, build, read_pointers
from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType, ModelBuilder, OperandType, to_text
from nnadapter.ir.structure import SpecializableModel, SpecializationGroup, SpecializedModel, program_sharing_key_of
from nnadapter.ir.symbolic_numbers import SymbolicTrace, apply_function

LISTS = {AttributeCode.KIND_INTS: ("integers", ctypes.c_int64), AttributeCode.KIND_FLOATS: ("reals", ctypes.c_double)}
SINGLE = {AttributeCode.KIND_BOOL: "boolean", AttributeCode.KIND_INT: "integer", AttributeCode.KIND_FLOAT: "real"}


def model_of_sizes(rows, columns, table=None, dtype=DataType.FLOAT32):
    """Build a model with shapes of rows and columns; `table` is a constant, or an input if None."""
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (rows, 3, columns)))
    type_ = OperandType(dtype, (columns,))
    added = builder.add_input("table", type_) if table is None else builder.add_constant("table", table)
    weight = builder.add_constant("weight", np.arange(3, dtype=np.float32).reshape(3, 1))
    (y,) = builder.add_operation("ADD", (x, weight), origins=["one", "zwei ü"])
    if dtype is DataType.FLOAT32:
        (y,) = builder.add_operation("ADD", (y, added))
    product = apply_function(int.__mul__, rows, columns)
    (y,) = builder.add_operation("RESHAPE", (y,), {"shape": (product, 3)})
    (z,) = builder.add_operation("ELU", (y,), {"alpha": apply_function(int.__truediv__, rows, columns)}, outputs=["z"])
    (t,) = builder.add_operation("TRANSPOSE", (z,), {"perm": (1, 0)})
    return builder.finish([z, t])


def ints(type_, address, count):
    return list((type_ * count).from_address(address)) if count else []


def attribute(address):
    c_attribute = CLASSES["Attribute"].from_address(address)
    if c_attribute.kind in LISTS:
        member, type_ = LISTS[c_attribute.kind]
        return c_attribute.name, ints(type_, getattr(c_attribute.value, member), c_attribute.count)
    return c_attribute.name, getattr(c_attribute.value, SINGLE.get(c_attribute.kind, "string"))


def operand(address):
    c_operand = CLASSES["Operand"].from_address(address)
    fields = (
        c_operand.name,
        c_operand.data_type,
        c_operand.layout,
        c_operand.lifetime,
        c_operand.bytes,
        c_operand.sizes,
        c_operand.quantization,
    )
    data = ctypes.string_at(c_operand.data, c_operand.bytes) if c_operand.data else None
    return *fields, ints(ctypes.c_int64, c_operand.dimensions, c_operand.rank), data


def operation(address):
    c_operation = CLASSES["Operation"].from_address(address)
    operands = (
        ints(ctypes.c_int32, c_operation.inputs, c_operation.input_count),
        ints(ctypes.c_int32, c_operation.outputs, c_operation.output_count),
    )
    texts = [ctypes.string_at(pointer) for pointer in read_pointers(c_operation.origins, c_operation.origin_count)]
    return (
        c_operation.type,
        *operands,
        list(map(attribute, read_pointers(c_operation.attributes, c_operation.attribute_count))),
        texts,
    )


def contents_of(address):
    """Return the model's contents as a driver reads them."""
    c_model = CLASSES["Model"].from_address(address)
    return (
        c_model.size_count,
        list(map(operand, read_pointers(c_model.operands, c_model.operand_count))),
        list(map(operation, read_pointers(c_model.operations, c_model.operation_count))),
        ints(ctypes.c_int32, c_model.inputs, c_model.input_count),
        ints(ctypes.c_int32, c_model.outputs, c_model.output_count),
    )


def specializable(dtype=DataType.FLOAT32):
    trace = SymbolicTrace()
    return trace, specializable_of(trace.variable(2), trace.variable(5), dtype)


def specializable_of(rows, columns, dtype=DataType.FLOAT32):
    model = model_of_sizes(rows, columns, dtype=dtype)
    return SpecializableModel(model, [index for index in model.inputs if model.operands[index].name == "table"])


def specialized_at(trace, of, rows, columns, dtype=np.float32):
    table = np.arange(columns).astype(dtype)
    return SpecializedModel(of, trace.replay([rows, columns]), dict.fromkeys(of.given, table)), table


@pytest.mark.parametrize("sizes", [(2, 5), (7, 3), (3, 4)])
def test_specialized_model_equals_one_built_for_its_sizes(sizes):
    trace, of = specializable()
    template, holder, other = ModelTemplates(of.group), Holder(), Holder()
    model, table = specialized_at(trace, of, *sizes)
    built = model_of_sizes(*sizes, table)
    address = template.build(model, holder)
    assert "operands" not in model.__dict__  # no operands were built
    assert contents_of(address) == contents_of(build(model, other)) == contents_of(build(built, other))
    assert to_text(model) == to_text(built) and model.structure == built.structure
    assert [model.type_at(index) for index in range(len(built.operands))] == [
        built_operand.type for built_operand in built.operands
    ]


def test_specialized_models_are_independent_of_each_other_and_the_template():
    trace, of = specializable()
    template, holders = ModelTemplates(of.group), [Holder(), Holder()]
    models = [specialized_at(trace, of, *sizes)[0] for sizes in ((2, 5), (3, 4))]
    addresses = [template.build(model, holder) for model, holder in zip(models, holders, strict=True)]
    initial = list(map(contents_of, addresses))
    del template, of, models
    gc.collect()
    assert [contents_of(address) for address in addresses] == initial and initial[0] != initial[1]


def test_models_specialized_together_equal_those_specialized_alone():
    trace = SymbolicTrace()
    rows, columns = trace.variable(2), trace.variable(5)
    models = [
        SpecializableModel(model_of_sizes(*order)) for order in ((rows, columns), (columns, rows), (rows, columns))
    ]
    templates = ModelTemplates(SpecializationGroup(models))
    for sizes in ((7, 3), (3, 4), (7, 3)):
        answers = trace.replay(sizes)
        filled = [SpecializedModel(model, answers, {}) for model in models]
        assert len({id(model.replay) for model in filled}) == 1
        for model in filled:
            holder, other_holder = Holder(), Holder()
            assert contents_of(templates.build(model, holder)) == contents_of(build(model, other_holder))
            types = [model.type_at(index) for index in range(len(model.operands))]
            assert types == [operand.type for operand in model.operands]


@pytest.mark.parametrize("sizes", [(1 << 31, 1 << 31), (1 << 32, 1 << 32), (1 << 40, (1 << 23) + 1), (1 << 64, 2)])
def test_too_large_tensor_is_refused(sizes):
    trace, builder = SymbolicTrace(), ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (trace.variable(2), trace.variable(5))))
    of = SpecializableModel(builder.finish(builder.add_operation("RELU", (x,))))
    model = SpecializedModel(of, trace.replay(list(sizes)), {})
    for build_one in (ModelTemplates(of.group).build, build):
        with pytest.raises(InvalidModelError, match="sizes are too large for a C driver"):
            build_one(model, Holder())


def test_model_holds_only_its_own_tables():
    trace = SymbolicTrace()
    rows, columns = trace.variable(2), trace.variable(5)
    models = [SpecializableModel(model_of_sizes(rows, columns)) for _ in range(50)]
    templates, answers, holder = ModelTemplates(SpecializationGroup(models)), trace.replay((7, 3)), Holder()
    templates.build(SpecializedModel(models[0], answers, {}), holder)
    ((words, _),) = holder.objects
    assert words.base is None and words.nbytes < 4096


def test_models_specialized_together_share_a_block_except_duplicates():
    trace = SymbolicTrace()
    rows, columns = trace.variable(2), trace.variable(5)
    models = [specializable_of(rows, columns) for _ in range(3)]
    templates, answers, holder = ModelTemplates(SpecializationGroup(models)), trace.replay((7, 3)), Holder()
    tables = [np.arange(3).astype(np.float32) + number for number in range(3)]
    filled = [
        SpecializedModel(models[place], answers, dict.fromkeys(models[place].given, table))
        for place, table in zip((0, 2, 0), tables, strict=True)
    ]
    addresses = [templates.build(model, holder) for model in filled]
    memory = [block[0] for block in holder.objects if isinstance(block, tuple)]
    assert memory[0] is memory[1] is not memory[2]
    other = Holder()
    assert list(map(contents_of, addresses)) == [
        contents_of(build(model_of_sizes(7, 3, table), other)) for table in tables
    ]


def test_4_bit_constants_are_built():
    trace, of = specializable(DataType.INT4)
    model, _ = specialized_at(trace, of, 3, 4, DataType.INT4.array_type)
    assert ModelTemplates(of.group).build(model, Holder()) is None


def test_specialized_model_can_be_pickled():
    trace, of = specializable()
    model, _ = specialized_at(trace, of, 3, 4)
    unpickled = pickle.loads(pickle.dumps(model))
    assert (
        type(unpickled) is not SpecializedModel
        and to_text(unpickled) == to_text(model)
        and unpickled.is_verified == model.is_verified
    )


def test_sharing_key_depends_on_sizes():
    trace, of = specializable()
    _, other = specializable()
    assert program_sharing_key_of(specialized_at(trace, of, 2, 5)[0]) == program_sharing_key_of(
        specialized_at(trace, other, 2, 5)[0]
    )
    assert program_sharing_key_of(specialized_at(trace, of, 2, 5)[0]) != program_sharing_key_of(
        specialized_at(trace, of, 5, 2)[0]
    )
