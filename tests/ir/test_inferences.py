"""Memoized inference, which must agree with the schema."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.errors import InvalidModelError
from nnadapter.ir import (
    DataType,
    OperandType,
    Quantization,
    QuantizedType,
    SymbolicNumber,
    check_attributes,
    check_inputs,
    schema_of,
)
from nnadapter.ir.operand_checks import result_types
from nnadapter.ir.symbolic_numbers import SymbolicTrace, size_hint
from nnadapter.ir.verification import Inferences

FLOATS = OperandType(DataType.FLOAT32, (2, 3))
INT8 = Quantization(scale=(0.5,), zero_point=(3,))
TYPES = [
    FLOATS,
    OperandType(DataType.FLOAT32, (1, 3)),
    OperandType(DataType.INT64, (2, 3)),
    OperandType(DataType.FLOAT32, (2, 3, 1)),
    OperandType(DataType.INT8, (2, 3), quantization=INT8),
    None,
]
KINDS = [
    ("ADD", 2, {}),
    ("ADD", 2, {"fuse_code": "relu"}),
    ("ADD", 2, {"fuse_code": 1}),
    ("RELU", 1, {}),
    ("SOFTMAX", 1, {"axis": 1}),
    ("SOFTMAX", 1, {"axis": True}),
    ("SOFTMAX", 1, {"axis": 1.0}),
    ("LEAKY_RELU", 1, {"alpha": 0.0}),
    ("LEAKY_RELU", 1, {"alpha": -0.0}),
    ("TRANSPOSE", 1, {"permutation": (1, 0)}),
    ("NOTHING", 1, {}),
]


def infer_by_schema(type_, types, attributes, quantized=()):
    """Return the schema's answer, the oracle."""
    schema = schema_of(type_)
    check_inputs(schema, types)
    complete = check_attributes(schema, attributes)
    return complete, result_types(schema, types, complete, quantized)


def outcome_of(ask, *arguments):
    try:
        complete, results = ask(*arguments)
    except InvalidModelError as error:
        return str(error)
    return repr(sorted(complete.items())), results


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.lists(st.sampled_from(TYPES), min_size=2, max_size=2),
            st.sampled_from([(), (None,), (QuantizedType(DataType.INT8, INT8),)]),
        ),
        max_size=30,
    )
)
def test_memoized_inference_equals_the_schema(asked):
    inferences = Inferences()
    for (type_, count, attributes), types, quantized in asked * 2:
        shared = [None if each is None else inferences.shared(each) for each in types[:count]]
        result = outcome_of(inferences.of, type_, shared, attributes, quantized)
        assert result == outcome_of(infer_by_schema, type_, types[:count], attributes, quantized)


def test_equal_types_become_one_object():
    inferences = Inferences()
    one = inferences.shared(OperandType(DataType.FLOAT32, (2, 3)))
    assert inferences.shared(OperandType(DataType.FLOAT32, (2, 3))) is one
    _, (result,) = inferences.of("RELU", [one], {})
    assert result is one


def test_returned_attributes_are_a_copy():
    inferences = Inferences()
    type_ = inferences.shared(FLOATS)
    for _ in range(2):
        inferences.of("ADD", [type_, type_], {})[0]["fuse_code"] = "relu"
    assert inferences.of("ADD", [type_, type_], {})[0]["fuse_code"] == "none"


def test_symbolic_types_are_inferred_every_time():
    """Equal numbers of two traces must each come from their own trace."""
    inferences = Inferences()
    for size in (4, 4, 5):
        trace = SymbolicTrace()
        type_ = inferences.shared(OperandType(DataType.FLOAT32, (trace.variable(size), 3)))
        _, (result,) = inferences.of("RELU", [type_], {})
        (first, _) = result.dimensions
        assert isinstance(first, SymbolicNumber)
        assert first.trace is trace
        assert size_hint(first) == size


def test_reused_identity_is_no_cache_hit():
    """A collected type's identity may be reused by another type."""
    inferences = Inferences()
    for size in range(1, 200):
        assert inferences.of("RELU", [OperandType(DataType.FLOAT32, (size,))], {})[1][0].dimensions == (size,)


def test_refusals_repeat():
    inferences = Inferences()
    types = [inferences.shared(FLOATS), inferences.shared(OperandType(DataType.FLOAT32, (7,)))]
    for _ in range(2):
        with pytest.raises(InvalidModelError, match="ADD"):
            inferences.of("ADD", types, {})
