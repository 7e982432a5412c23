import numpy as np
import pytest

from nnadapter.errors import PassError
from nnadapter.ir import DataType, Model, ModelBuilder, OperandType
from nnadapter.ir.definition import by_definition
from nnadapter.ir.passes import all_of, check_numbers, dump_to, run_passes
from nnadapter.ir.rewrite import RewriteRule, operand, operation, rewrite
from tests.ir.passes.program import Program, random


def model():
    program = Program(x=(2, 3, 4))
    y = program("MUL", program("ASSIGN", program.x), random(1, 4))
    return program.finish(program("RELU", y), program("NEG", y))


def replacing(type_, by, **attributes):
    """Return a pass that replaces one operation with another, correct or not."""

    def replacement(editor, match):
        return editor.add_operation(by, (match.operands["x"],), attributes, origins=match.operations)

    def wrong(given):
        return rewrite(given, [RewriteRule(operation(type_, operand("x")), replacement)])

    return wrong


def test_pass_that_preserves_results_is_accepted():
    run_passes(model(), ["simplify", replacing("RELU", "CLIP", min=0.0)], check_numbers(by_definition))


def test_error_names_pass_output_and_position():
    with pytest.raises(
        PassError, match=r"pass 'wrong' changed output 'v5'.*largest difference is .* at \[\d, \d, \d\]"
    ) as caught:
        run_passes(model(), ["simplify", replacing("NEG", "ABS")], check_numbers(by_definition))
    assert (caught.value.name, caught.value.output) == ("wrong", "v5")


def test_error_names_the_position_of_the_largest_difference():
    given = np.array([1, -2, 5, -9], "f").reshape(2, 2)
    program = Program(x=(2, 2))
    expected = program.finish(program("NEG", program.x))
    check = check_numbers(by_definition, feeds=lambda _: [given])
    with pytest.raises(PassError, match=r"difference is 10 at \[1, 0\], got 5.0, expected -5.0 within"):
        run_passes(expected, [replacing("NEG", "ABS")], check)


def test_invalid_models_and_changed_signatures_are_errors():
    def renames(given):
        builder = ModelBuilder()
        x = builder.add_input("y", OperandType(DataType.FLOAT32, (2, 3, 4)))
        return builder.finish([*builder.add_operation("RELU", (x,)), *builder.add_operation("NEG", (x,))])

    def breaks(given):
        return Model(given.operands, given.operations[::-1], given.inputs, given.outputs)

    with pytest.raises(PassError, match=r"'renames' changed the inputs of the model to 'y' .*, expected 'x'"):
        run_passes(model(), [renames], check_numbers(by_definition))
    with pytest.raises(PassError, match=r"'breaks' built an invalid model: .*reads operand"):
        run_passes(model(), [breaks], check_numbers(by_definition))


@pytest.mark.parametrize("made", [None, 3, ()])
@pytest.mark.parametrize("check", [None, check_numbers(by_definition)])
def test_pass_without_model_result_is_an_error(made, check):
    with pytest.raises(PassError, match=f"pass 'mine' returned {type(made).__name__}, expected a Model") as caught:
        run_passes(model(), ["mine"], check, driver_passes={"mine": lambda given: made})
    assert caught.value.name == "mine"


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ((), r"RELU is replaced by \(\), expected 1 operands"),
        ((0, 0), "expected 1 operands"),
        (0, "RELU is replaced by 0, expected 1 operands"),
        ((999,), "999, which is not an operand"),
        ((-1,), "-1, which is not an operand"),
        ((None,), "None, which is not an operand"),
        ((2,), "its replacement is"),
    ],
)
def test_misfit_replacement_is_an_error(results, reason):
    def mine(given):
        return rewrite(given, [RewriteRule(operation("RELU", operand("x")), lambda editor, match: results)])

    with pytest.raises(PassError, match=f"pass 'mine' failed: .*{reason}") as caught:
        run_passes(model(), [mine])
    assert caught.value.name == "mine"


def test_unevaluable_model_is_an_error():
    with pytest.raises(
        PassError, match="'simplify' cannot be checked: the check's evaluator refuses the model before the pass"
    ):
        run_passes(model(), ["simplify"], check_numbers(lambda model, inputs: None))


def test_unchanged_model_is_not_evaluated():
    calls = []
    run_passes(model(), ["reduce_rank", "channels_last"], check_numbers(lambda *given: calls.append(given)))
    assert not calls


@pytest.mark.parametrize(("dtype", "fits"), [("float32", True), ("float64", False)])
def test_tolerance_depends_on_the_data_type(dtype, fits):
    program = Program(dtype, x=(4,))
    expected = program.finish(program("CLIP", program.x, min=0.0, max=9.0))
    pass_ = replacing("CLIP", "CLIP", min=1e-5, max=9.0)
    if fits:
        run_passes(expected, [pass_], check_numbers(by_definition))
    else:
        with pytest.raises(PassError, match="changed output"):
            run_passes(expected, [pass_], check_numbers(by_definition))


def test_integers_are_compared_exactly():
    big = np.array([2**53 + 1, 2**53 + 3], np.int64)
    program = Program("int64", x=(2,))
    expected = program.finish(program("ASSIGN", program.x))
    answers = iter([[big], [big - 1]])
    with pytest.raises(PassError, match="changed output"):
        run_passes(expected, [replacing("ASSIGN", "RELU")], check_numbers(lambda *_: next(answers)))


def test_nan_and_infinities_equal_themselves():
    given = np.array([np.nan, np.inf, -np.inf, 1], "f")
    program = Program(x=(4,))
    expected = program.finish(program("ASSIGN", program.x))
    run_passes(expected, [replacing("ASSIGN", "ASSIGN")], check_numbers(by_definition, feeds=lambda _: [given]))
    with pytest.raises(PassError, match="largest difference is inf"):
        run_passes(expected, [replacing("ASSIGN", "RELU")], check_numbers(by_definition, feeds=lambda _: [given]))


def test_samples_are_valid_indices_and_the_same_every_time():
    builder = ModelBuilder()
    types = [OperandType(DataType(name), (3,)) for name in ("float16", "int64", "uint8", "int8", "bool", "int32")]
    floats, indices, *_ = (builder.add_input(str(position), type_) for position, type_ in enumerate(types))
    model = builder.finish(builder.add_operation("GATHER", (floats, indices), {"axis": 0}))
    fed = []

    def copied(given):
        return Model(given.operands, given.operations, given.inputs, given.outputs)

    def evaluate(model, inputs):
        fed.append(inputs)
        return by_definition(model, inputs)

    for _ in range(2):
        run_passes(model, [copied], check_numbers(evaluate))
    first, again = fed[0], fed[-1]
    for type_, one, other in zip(types, first, again, strict=True):
        assert (one.dtype.name, one.shape) == (type_.dtype.value, type_.dimensions)
        np.testing.assert_array_equal(one, other)
    by_definition(model, first)


def test_every_step_is_a_file(tmp_path):
    observed = []
    observer = all_of(dump_to(tmp_path / "steps"), lambda name, before, after: observed.append(name))
    run_passes(model(), ["remove_dead", "simplify"], observer)
    files = sorted((tmp_path / "steps").iterdir())
    assert [file.name for file in files] == ["00-given.txt", "01-remove_dead.txt", "02-simplify.txt"]
    given, same, simplified = (file.read_text().splitlines() for file in files)
    assert given == same
    assert observed == ["remove_dead", "simplify"]
    gone, come = set(given) - set(simplified), set(simplified) - set(given)
    assert len(gone) == 2
    assert len(come) == 1
    assert 'input "x": float32[2, 3, 4]' in given
    assert all("%" not in line for line in given)


def test_pass_name_is_sanitized_in_file_names(tmp_path):
    def odd(given):
        return given

    odd.__name__ = "my/pass: 2"
    run_passes(model(), [odd], dump_to(tmp_path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["00-given.txt", "01-my_pass__2.txt"]
