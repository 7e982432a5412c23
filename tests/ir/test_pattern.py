import gc
import weakref

import numpy as np
import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.ir import SCHEMAS
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.passes import FUSABLE
from nnadapter.ir.rewrite import RewriteRule, constant, either, match_at, operand, operation, rewrite
from tests.ir.passes.program import Program, chain, check, types

X, Y = operand("x"), operand("y")


def find_matches(model, pattern):
    editor = ModelEditor(model)
    return [match for index in editor.sweep() if (match := match_at(editor, index, pattern)) is not None]


def anchors(model, pattern):
    return [match.anchor for match in find_matches(model, pattern)]


def test_a_chain_is_matched_from_its_last_operation():
    program = Program(x=(2, 3))
    model = program.finish(program("TANH", program("RELU", program("NEG", program.x))))
    (match,) = find_matches(model, operation("TANH", operation("RELU", X, name="inner")))
    assert (match.operations, match.named["inner"], match.operands) == (
        (2, 1),
        1,
        {"x": model.operations[0].outputs[0]},
    )


@pytest.mark.parametrize(("type_", "found"), [("ADD", 1), ("SUB", 0)])
def test_commutative_inputs_match_either_way(type_, found):
    program = Program(x=(2, 3), z=(2, 3))
    model = program.finish(program(type_, program.z, program("RELU", program.x)))
    assert len(find_matches(model, operation(type_, operation("RELU"), X))) == found


@pytest.mark.parametrize(("same", "found"), [(True, 1), (False, 0)])
def test_repeated_operand_name_matches_one_operand(same, found):
    program = Program(x=(2, 3), z=(2, 3))
    model = program.finish(program("MUL", program.x, program("RELU", program.x if same else program.z)))
    assert len(find_matches(model, operation("MUL", X, operation("RELU", X)))) == found


@pytest.mark.parametrize(
    ("value", "expected", "found"),
    [
        (np.float32(1 / 3), 1 / 3, 1),
        (np.full((1, 1), 1 / 3, np.float32), 1 / 3, 1),
        (np.float32(0.3333), 1 / 3, 0),
        (np.full(3, 1 / 3, np.float32), 1 / 3, 0),
        (np.float32(2), 2, 1),
        (np.float32(0), 0, 1),
        (np.float16(0.5015), 0.5, 0),
        (np.float16(1 / 3), 1 / 3, 1),
        (np.nextafter(np.float16(1 / 3), np.float16(1)), 1 / 3, 1),
        (np.float16(1 / 3) + 2 * np.spacing(np.float16(1 / 3)), 1 / 3, 0),
        (np.asarray(1 / 3, "bfloat16"), 1 / 3, 1),
        (np.asarray(0.3359375, "bfloat16"), 1 / 3, 1),
        (np.asarray(0.337890625, "bfloat16"), 1 / 3, 0),
        (np.float16(0.001), 0, 0),
    ],
)
def test_a_constant_number_is_compared_at_its_precision(value, expected, found):
    program = Program(dtype=np.asarray(value).dtype.name, x=(2, 3))
    model = program.finish(program("ADD", program.x, np.asarray(value)))
    assert len(find_matches(model, operation("ADD", X, constant(value=expected)))) == found


def test_repeated_operation_name_matches_one_operation():
    program = Program(x=(2, 3))
    one, other = program("NEG", program.x), program("NEG", program.x)
    named = operation("NEG", X, name="same")
    for second, found in [(one, 1), (other, 0)]:
        model = program.finish(program("SUB", one, second))
        assert len(find_matches(model, operation("SUB", named, named))) == found


def test_predicates():
    program = Program(x=(2, 3))
    model = program.finish(program("CLIP", program("ADD", program.x, np.ones(3, np.float32)), min=0.0, max=6.0))
    pattern = operation(
        "ADD", operand("x", when=lambda found: found.type.rank == 2), constant(when=lambda c: c.ndim == 1)
    )
    assert anchors(model, operation("CLIP", pattern, min=0.0, max=lambda value: value > 5)) == [1]
    assert anchors(model, operation("CLIP", pattern, max=5.0)) == []
    with pytest.raises(InvalidModelError, match="'no_such_attribute'; known: max, min"):
        operation("CLIP", pattern, no_such_attribute=1)


def test_either_tries_patterns_in_order():
    program = Program(x=(2, 3))
    model = program.finish(program("RELU", program("TANH", program.x)), program("RELU", program("NEG", program.x)))
    assert anchors(model, operation("RELU", either(operation("NEG"), operation("TANH")))) == [1, 3]


def test_shared_value_is_not_matched():
    program = Program(x=(2, 3))
    inner = program("RELU", program.x)
    model = program.finish(program("TANH", inner), inner)
    assert anchors(model, operation("TANH", operation("RELU"))) == []


def test_shared_subpattern_may_be_read_twice():
    program = Program(x=(2, 3))
    inner = program("NEG", program.x)
    model = program.finish(program("ADD", program("RELU", inner), program("TANH", inner)))
    shared = operation("NEG", X)
    assert anchors(model, operation("ADD", operation("TANH", shared), operation("RELU", shared))) == [3]


def test_fused_activation_must_match():
    program = Program(x=(2, 3))
    model = program.finish(program("ADD", program.x, 1.0, fuse_code="relu"))
    assert anchors(model, operation("ADD", X, Y)) == []
    assert anchors(model, operation("ADD", X, Y, fuse_code="relu")) == [0]


def test_the_second_output_of_an_operation_is_not_the_first():
    program = Program(x=(2, 3))
    values, indices = program("TOP_K", program.x, k=1, axis=1)
    model = program.finish(program("CAST", indices, to="float32"), values)
    assert anchors(model, operation("CAST", operation("TOP_K"))) == []


def double(editor, match):
    return editor.add_operation(
        "MUL", (match.operands["x"], editor.add_constant("x", np.float32([2]))), origins=match.operations
    )


def test_rewriting_keeps_names_and_origins():
    program = Program(x=(2, 3))
    y = program("ADD", program.x, program.x)
    model = program.finish(program("TANH", program("ADD", y, y)), y)
    after = check(lambda each: rewrite(each, [RewriteRule(operation("ADD", X, X), double)]), model)
    assert types(after) == ["MUL", "MUL", "TANH"]
    assert {operand.name for operand in model.operands} <= {operand.name for operand in after.operands}


def test_replacement_of_another_type_is_an_error():
    program = Program(x=(2, 3))
    model = program.finish(program("TANH", program("REDUCE_SUM", program.x, axes=(1,), keepdims=True)))
    rule = RewriteRule(operation("REDUCE_SUM", X), lambda editor, match: [match.operands["x"]])
    with pytest.raises(InvalidModelError, match="its replacement is"):
        rewrite(model, [rule])


def test_fusable_operations_agree_with_the_schemas():
    assert set(FUSABLE) == {type_ for type_, row in SCHEMAS.items() if row.attribute("fuse_code")}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: operation("SOFTMX", X), "'SOFTMX'; did you mean 'SOFTMAX'"),
        (lambda: operation(["RELU", "RELU7"], X), "'RELU7'; did you mean 'RELU'"),
        (lambda: operation("SOFTMAX", X, axes=1), "SOFTMAX: .* 'axes'; did you mean 'axis'"),
        (lambda: operation(["SOFTMAX", "RELU"], X, axis=bool), "RELU: .* 'axis'; known: none"),
        (lambda: operation("SOFTMAX", X, Y), r"2 inputs, expected at most 1 \(input\)"),
        (lambda: operation(["ADD", "NEG"], X, Y), "NEG: .*2 inputs"),
        (lambda: operation("ADD", X, Y, fuse_code="relo"), "'fuse_code' of the pattern is 'relo'.*'relu'"),
    ],
)
def test_impossible_pattern_is_an_error(make, reason):
    with pytest.raises(InvalidModelError, match=reason):
        make()


def test_variadic_inputs_may_be_any_number():
    program = Program(x=(2, 3), z=(2, 3))
    model = program.finish(program("SUM", program.x, program.z, program.x))
    assert anchors(model, operation("SUM", X, Y, X)) == [0]


def test_unreferenced_rules_are_freed():
    held = [np.zeros(1) for _ in range(3)]
    gone = [weakref.ref(each) for each in held]
    for each in held:
        rewrite(chain("RELU", "EXP"), [RewriteRule(operation("RELU", X), lambda editor, match, kept=each: None)])
    held.clear()
    del each
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
