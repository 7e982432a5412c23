from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.ir.definition import FUNCTIONS, by_definition
from tests.ir.operations.shape_oracle import dimensions, flops, infer, operand


@pytest.mark.parametrize("type_", ["TAN", "CELU", "SHRINK", "THRESHOLDED_RELU"])
def test_functions_keep_type_and_layout(type_: str):
    image = operand(1, 4, 4, 3, layout="NHWC")
    assert infer(type_, [image]) == (image,)


@pytest.mark.parametrize("type_", ["IS_NAN", "IS_INF"])
def test_classification_of_numbers_returns_bool(type_: str):
    assert infer(type_, [operand(2, 3)]) == (operand(2, 3, dtype="bool"),)


def test_binary_operations_broadcast():
    pair = [operand(2, 1, dtype="int32"), operand(3, dtype="int32")]
    assert infer("FLOOR_DIV", pair) == (operand(2, 3, dtype="int32"),)
    assert infer("NOT_EQUAL", pair) == (operand(2, 3, dtype="bool"),)


def test_swiglu_wants_equal_dimensions():
    assert dimensions("SWIGLU", [(2, 3), (2, 3)]) == [(2, 3)]
    with pytest.raises(InvalidModelError, match=r"SWIGLU: gate \[2, 3\] and value \[3\] differ"):
        infer("SWIGLU", [operand(2, 3), operand(3)])


def test_celu_wants_an_alpha():
    with pytest.raises(InvalidModelError, match="CELU: alpha is 0"):
        infer("CELU", [operand(2)], alpha=0.0)


@pytest.mark.parametrize("type_", ["BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "BIT_SHIFT"])
def test_bits_broadcast(type_: str):
    attributes = {"direction": "left"} if type_ == "BIT_SHIFT" else {}
    pair = [operand(2, 1, dtype="int8"), operand(3, dtype="int8")]
    assert infer(type_, pair, **attributes) == (operand(2, 3, dtype="int8"),)
    with pytest.raises(InvalidModelError, match="float32"):
        infer(type_, [operand(2), operand(2)], **attributes)


def test_bit_cast_keeps_the_width():
    assert infer("BIT_CAST", [operand(2)], to="int32") == (operand(2, dtype="int32"),)
    with pytest.raises(InvalidModelError, match="BIT_CAST: to is int4 of 4 bits, expected a data type of 32 bits"):
        infer("BIT_CAST", [operand(2)], to="int4")


@pytest.mark.parametrize("type_", ["CUM_PROD", "HARDMAX"])
def test_axis_is_checked(type_: str):
    assert dimensions(type_, [(2, 3)], axis=1) == [(2, 3)]
    with pytest.raises(InvalidModelError, match="axis is 2"):
        infer(type_, [operand(2, 3)], axis=2)


def test_determinants():
    assert dimensions("DETERMINANT", [(5, 3, 3)]) == [(5,)]
    assert flops("DETERMINANT", [operand(5, 3, 3)]) == 5 * (18 + 3)
    with pytest.raises(InvalidModelError, match="matrices of 2 by 3, expected squares"):
        infer("DETERMINANT", [operand(2, 3)])


def test_generators():
    scalar = operand(dtype="int32")
    assert infer("FILL", [scalar], shape=(2, 0)) == (operand(2, 0, dtype="int32"),)
    assert infer("RANGE", [scalar, scalar], count=4) == (operand(4, dtype="int32"),)
    assert infer("EYE_LIKE", [operand(2, 3)], to="bool") == (operand(2, 3, dtype="bool"),)


@pytest.mark.parametrize(
    ("type_", "inputs", "attributes", "message"),
    [
        ("FILL", [operand()], {"shape": (-1,)}, "FILL: shape is"),
        ("FILL", [operand(1)], {"shape": (2,)}, "has rank 1, expected 0"),
        ("RANGE", [operand(), operand()], {"count": -1}, "RANGE: count is -1"),
        ("RANGE", [operand(), operand(1)], {"count": 1}, r"RANGE: delta has dimensions \[1\]"),
        ("EYE_LIKE", [operand(2)], {"to": "bool"}, "has rank 1, expected 2"),
    ],
)
def test_generators_refuse(type_, inputs, attributes, message):
    with pytest.raises(InvalidModelError, match=message):
        infer(type_, inputs, **attributes)


_LABELS = st.text("abAB", max_size=3)


@given(st.lists(_LABELS, min_size=1, max_size=3), _LABELS, st.booleans(), st.booleans(), st.booleans())
def test_equations_are_interpreted_like_numpy(terms, right, explicit, dots, result_dots):
    """The result has numpy's shape, or both refuse the equation."""
    sizes = {"a": 2, "b": 3, "A": 4, "B": 5}
    shapes = [(6,) * dots + tuple(sizes[letter] for letter in term) for term in terms]
    text = ",".join("..." * dots + term for term in terms)
    text += ("->" + "..." * result_dots + right) * explicit
    try:
        expected = np.einsum(text, *map(np.zeros, shapes)).shape
    except ValueError:
        with pytest.raises(InvalidModelError, match="EINSUM: equation"):
            infer("EINSUM", [operand(*shape) for shape in shapes], equation=text)
    else:
        assert dimensions("EINSUM", shapes, equation=text) == [expected]


def test_axis_of_one_element_broadcasts():
    assert dimensions("EINSUM", [(2, 1), (3, 4)], equation="ij,jk->ik") == [(2, 4)]
    assert dimensions("EINSUM", [(3, 4), (2, 1)], equation="jk,ij->jik") == [(3, 2, 4)]


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk", [(2, 3)], "has 2 terms, expected 1"),
        ("i1", [(2, 3)], "expected letters"),
        ("......i", [(2, 3)], "one '...' at most"),
        ("ijk", [(2, 3)], "term 'ijk' for rank 2, expected a label per axis"),
        ("...ijk", [(2, 3)], "for -1 axes of an input of rank 2"),
        ("...i,...i", [(2, 3), (2, 2, 3)], "for 2 axes of an input of rank 3, expected 1"),
        ("ij->ii", [(2, 3)], "'i' in the result"),
        ("ij->k", [(2, 3)], "'k' in the result"),
        ("i...->i", [(2, 3)], "expected it in the result too"),
        ("ij,jk->ik->", [(2, 3), (3, 4)], "expected letters"),
        ("ij,jk", [(2, 3), (4, 5)], "label 'j' has sizes 3 and 4"),
    ],
)
def test_invalid_equations_are_refused(equation, shapes, message):
    with pytest.raises(InvalidModelError, match=message):
        infer("EINSUM", [operand(*shape) for shape in shapes], equation=equation)


def test_ellipsis_stands_for_the_same_axes():
    """An ellipsis stands for the same axes in all terms, and for the first axes of the result."""
    inputs, equation = [operand(2, 3, 4, 5), operand(2, 3, 5, 6)], "...ij, ...jk"
    assert infer("EINSUM", inputs, equation=equation) == (operand(2, 3, 4, 6),)
    assert flops("EINSUM", inputs, equation=equation) == flops("EINSUM", inputs, equation="abij,abjk->abik")
    arrays = [np.arange(np.prod(each.dimensions), dtype=np.float32).reshape(each.dimensions) for each in inputs]
    made = FUNCTIONS["EINSUM"](*arrays, equation=equation)
    np.testing.assert_allclose(made, np.einsum("abij,abjk->abik", *arrays), rtol=1e-6)


def test_flops_of_equations():
    matrices = [operand(2, 3), operand(3, 4)]
    assert flops("EINSUM", matrices, equation="ij,jk->ik") == flops("MAT_MUL", matrices)
    assert flops("EINSUM", [operand(2, 3)], equation="ij->ji") == 0
    assert flops("EINSUM", [operand(2, 3)], equation="ij->i") == 6
    assert flops("EINSUM", [operand(2, 3)], equation="ij->") == 6
    chain = [operand(5, 7), operand(7, 8), operand(8, 9)]
    assert flops("EINSUM", chain, equation="ij,jk,kl->il") == 2 * 5 * 7 * 8 + 2 * 5 * 8 * 9
    attention = [operand(2, 10, 16), operand(2, 12, 16), operand(2, 12, 16)]
    assert flops("EINSUM", attention, equation="bqd,bkd,bkv->bqv") == 2 * (2 * 2 * 10 * 12 * 16)
    assert flops("EINSUM", [operand(3), operand(4), operand(5)], equation="i,j,k->ijk") == 3 * 4 + 3 * 4 * 5
    alike = [operand(3, 1), operand(3, 1), operand(3, 1)]
    assert flops("EINSUM", alike, equation="ia,ib,ic->i") == 9, "not more than all at once"
    assert flops("EINSUM", [operand(2), operand(3)], equation="i,j->ij") == 6


def test_int4_sums_of_products_wrap_around():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.INT4, (2, 3)))
    model = builder.finish(builder.add_operation("EINSUM", (x,), {"equation": "ij->i"}))
    (result,) = by_definition(model, [np.array([[7, 7, 1], [-8, -8, -1]], "int4")])
    assert result.tolist() == [-1, -1]
