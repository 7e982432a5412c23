from nnadapter.ir import DataType, Model, ModelBuilder, OperandType, to_text
from nnadapter.ir.structure import SymbolicModel, numbers, with_numbers
from nnadapter.ir.symbolic_numbers import SymbolicTrace


def flattened(height: object, width: object) -> Model:
    builder = ModelBuilder()
    image = builder.add_input("x", OperandType(DataType.FLOAT32, (1, height, width)))  # type: ignore[arg-type]
    (relu,) = builder.add_operation("RELU", (image,))
    (flat,) = builder.add_operation("RESHAPE", (relu,), {"shape": (height * width,)})  # type: ignore[operator]
    return builder.finish([flat])


def test_models_of_different_sizes_share_a_structure() -> None:
    assert flattened(2, 3).structure == flattened(4, 5).structure
    builder = ModelBuilder()
    image = builder.add_input("x", OperandType(DataType.FLOAT16, (1, 2, 3)))
    (relu,) = builder.add_operation("RELU", (image,))
    (flat,) = builder.add_operation("RESHAPE", (relu,), {"shape": (6,)})
    assert builder.finish([flat]).structure != flattened(2, 3).structure


def test_numbers_can_be_replaced() -> None:
    small, large = flattened(2, 3), flattened(4, 5)
    assert to_text(with_numbers(small, numbers(large))) == to_text(large)
    assert with_numbers(small, numbers(small)).operands[0] is small.operands[0]


def test_symbolic_model_is_specialized_and_reports_covarying_numbers() -> None:
    trace = SymbolicTrace()
    model = SymbolicModel(flattened(trace.variable(2), trace.variable(3)))
    replayed = trace.replay([4, 5])
    assert replayed is not None
    filled, values = model.specialize(replayed), numbers(flattened(4, 5))
    assert to_text(filled) == to_text(flattened(4, 5))
    assert filled.structure == flattened(4, 5).structure
    assert sorted({values[place] for place in places} for places in filled.covarying_number_groups) == [{4}, {5}, {20}]


def test_part_of_a_symbolic_model_is_cached() -> None:
    trace = SymbolicTrace()
    model = SymbolicModel(flattened(trace.variable(2), trace.variable(3)))
    part = model.part([0], [0], [1])
    assert model.part([0], [0], [1]) is part
    replayed = trace.replay([4, 5])
    assert replayed is not None
    assert [operand.type.dimensions for operand in part.specialize(replayed).operands] == [(1, 4, 5), (1, 4, 5)]
