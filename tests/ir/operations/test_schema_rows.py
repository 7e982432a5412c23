from __future__ import annotations

import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.ir import SCHEMAS, AttributeKind, OperationSchema, check_attributes, schema_of
from tests.every import for_every
from tests.ir.operations.shape_oracle import infer, operand

_PYTHON = {
    AttributeKind.BOOL: bool,
    AttributeKind.INT: int,
    AttributeKind.FLOAT: float,
    AttributeKind.STRING: str,
    AttributeKind.INTS: tuple,
    AttributeKind.FLOATS: tuple,
}
_ROWS = for_every(row=SCHEMAS.values())

_NAMES = """
    ABS NEG SIGN FLOOR CEIL ROUND EXP LOG SQRT RECIPROCAL ERF SIN COS TANH SIGMOID SOFTPLUS SOFTSIGN MISH RELU SWISH
    GELU HARD_SIGMOID HARD_SWISH LEAKY_RELU ELU SELU CLIP NOT ASSIGN CAST PRELU ADD SUB MUL DIV POW MAX MIN MOD EQUAL
    GREATER GREATER_EQUAL LESS LESS_EQUAL AND OR XOR SUM WHERE CONV_2D CONV_2D_TRANSPOSE FULLY_CONNECTED MAT_MUL
    MAX_POOL_2D AVERAGE_POOL_2D BATCH_NORMALIZATION LAYER_NORMALIZATION INSTANCE_NORMALIZATION
    LOCAL_RESPONSE_NORMALIZATION SOFTMAX LOG_SOFTMAX REDUCE_MEAN REDUCE_SUM REDUCE_MAX REDUCE_MIN REDUCE_PROD ARG_MAX
    ARG_MIN RESHAPE TRANSPOSE EXPAND TILE CONCAT SPLIT SLICE GATHER GATHER_ELEMENTS PAD RESIZE_NEAREST RESIZE_LINEAR
    DEPTH_TO_SPACE SPACE_TO_DEPTH CUM_SUM TOP_K MAT_MUL_N_BITS
    ACOS ACOSH ASIN ASINH ATAN ATANH COSH SINH TAN CELU SHRINK THRESHOLDED_RELU IS_NAN IS_INF SWIGLU BITWISE_AND
    BITWISE_OR BITWISE_XOR BITWISE_NOT BIT_SHIFT BIT_CAST CUM_PROD HARDMAX TRILU DETERMINANT EINSUM FILL RANGE EYE_LIKE
    RSQRT SQUARE NOT_EQUAL FLOOR_DIV
    GATHER_ND SCATTER_ELEMENTS SCATTER_ND TENSOR_SCATTER ONE_HOT REVERSE_SEQUENCE GRID_SAMPLE AFFINE_GRID ROI_ALIGN
    MAX_ROI_POOL DEFORMABLE_CONV_2D CONV_3D CONV_3D_TRANSPOSE MAX_POOL_3D AVERAGE_POOL_3D LP_POOL_2D LP_POOL_3D
    MAX_POOL_2D_WITH_INDICES MAX_POOL_3D_WITH_INDICES MAX_UNPOOL_2D COL_TO_IM
    LSTM GRU RNN ATTENTION ROTARY_EMBEDDING LINEAR_ATTENTION CAUSAL_CONV RMS_NORMALIZATION LP_NORMALIZATION
    MEAN_VARIANCE_NORMALIZATION NEGATIVE_LOG_LIKELIHOOD_LOSS SOFTMAX_CROSS_ENTROPY_LOSS DFT STFT
    QUANTIZE DEQUANTIZE STORAGE_CAST CUSTOM
"""
_FUSABLE = {"ADD", "SUB", "MUL", "DIV", "CONV_2D", "CONV_2D_TRANSPOSE", "FULLY_CONNECTED", "MAT_MUL"}


def test_table_has_the_expected_operations():
    assert sorted(SCHEMAS) == sorted(_NAMES.split())
    assert {row.type for row in SCHEMAS.values() if row.attribute("fuse_code")} == _FUSABLE


def test_table_is_read_only():
    with pytest.raises(TypeError):
        SCHEMAS["ABS"] = SCHEMAS["NEG"]  # type: ignore[index]


@_ROWS
def test_attributes_are_well_formed(row: OperationSchema):
    names = [attribute.name for attribute in row.attributes]
    assert len(set(names)) == len(names)
    for attribute in row.attributes:
        assert not attribute.choices or attribute.kind is AttributeKind.STRING
        assert attribute.length is None or attribute.kind in (AttributeKind.INTS, AttributeKind.FLOATS)
        if attribute.default is not None:
            assert type(attribute.default) is _PYTHON[attribute.kind]
            assert check_attributes(_only(row, attribute.name), {attribute.name: attribute.default})


def _only(row: OperationSchema, name: str) -> OperationSchema:
    attribute = row.attribute(name)
    assert attribute is not None
    return OperationSchema(
        type=row.type, inputs=row.inputs, attributes=(attribute,), infer=row.infer, flops=row.flops, source=row.source
    )


@_ROWS
def test_roles_are_well_formed(row: OperationSchema):
    names = [role.name for role in row.inputs]
    assert len(set(names)) == len(names) > 0
    assert not row.inputs[0].optional
    assert all(role.same_dtype_as in (None, *names) for role in row.inputs)
    assert not any(role.variadic for role in row.inputs[:-1])
    optional = [role.optional for role in row.inputs]
    assert optional == sorted(optional)
    assert all(role.dtypes for role in row.inputs)


@_ROWS
def test_row_has_source_and_outputs(row: OperationSchema):
    assert any(origin in row.source for origin in ("ONNX", "NNAPI", "NNADAPTER"))
    assert row.outputs
    assert 0 <= row.ranks[0] <= row.ranks[1]


def test_row_attribute_finds_by_name():
    assert schema_of("CONV_2D").attribute("group").default == 1
    assert schema_of("CONV_2D").attribute("groups") is None


@pytest.mark.parametrize(
    ("name", "hint"), [("CONV2D", "'CONV_2D'"), ("conv_2d", "'CONV_2D'"), ("Sofmax", "'SOFTMAX'"), ("?", "known: ABS")]
)
def test_unknown_operation_suggests_close_names(name: str, hint: str):
    with pytest.raises(InvalidModelError, match="unknown operation") as caught:
        schema_of(name)
    assert hint in str(caught.value)


def test_every_fuse_code_names_its_parameters():
    with pytest.raises(InvalidModelError, match=r"expected 2 \(min, max\) for fuse_code 'clip'"):
        infer("ADD", [operand(2), operand(2)], fuse_code="clip")
    assert SCHEMAS["ADD"].attribute("fuse_code").choices[0] == "none"
