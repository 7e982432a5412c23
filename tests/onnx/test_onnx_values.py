import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, TypeProto, helper

from nnadapter.onnx import value_of, values_of

FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
TYPES = [
    (helper.make_tensor_type_proto(TensorProto.BFLOAT16, [-1, "n", None, 2]), "bfloat16", (None, "n", None, 2)),
    (helper.make_tensor_type_proto(TensorProto.INT4, None), "int4", None),
    (helper.make_tensor_type_proto(TensorProto.STRING, []), "string", ()),
    (helper.make_tensor_type_proto(TensorProto.FLOAT8E4M3FN, [0]), "float8_e4m3fn", (0,)),
    (helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [3, 4]), "sparse(float32)", (3, 4)),
    (helper.make_sequence_type_proto(FLOATS), "sequence(float32)", None),
    (helper.make_optional_type_proto(helper.make_sequence_type_proto(FLOATS)), "optional(sequence(float32))", None),
    (helper.make_map_type_proto(TensorProto.INT64, FLOATS), "map(int64, float32)", None),
    (TypeProto(sequence_type=TypeProto.Sequence()), "sequence(?)", None),
    (TypeProto(), None, None),
]


@pytest.mark.parametrize(("type_proto", "dtype", "shape"), TYPES)
def test_value_of(type_proto, dtype, shape):
    value = value_of(onnx.ValueInfoProto(name="v", type=type_proto))
    assert (value.name, value.dtype, value.shape) == ("v", dtype, shape)


def test_half_bytes_are_rounded_up():
    assert value_of(helper.make_tensor_value_info("v", TensorProto.INT4, [3])).nbytes == 2


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([row[0] for row in TYPES]))))
def test_many_values_equal_single_ones(drawn):
    infos = [onnx.ValueInfoProto(name=name, type=type_proto) for name, type_proto in drawn]
    assert values_of(infos) == {info.name: value_of(info) for info in infos}
    assert list(values_of(infos)) == list(dict.fromkeys(info.name for info in infos))
