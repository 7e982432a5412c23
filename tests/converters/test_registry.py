"""Converters for every schema version of every op, or refusals with a reason."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx import helper

from nnadapter.converters import OnnxNode, convert_graph, converted, read_node, since_version
from nnadapter.converters.registry import NO_CONVERTER, UNCONVERTED, converter, lookup
from nnadapter.drivers import Reason, Unsupported
from nnadapter.onnx import further_schema, is_further
from partition import Value
from tests.every import for_every

_OPS = """
    Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast Ceil Clip Concat Conv ConvTranspose Cos CumSum
    DepthToSpace Div Dropout Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements Gelu Gemm
    GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity
    InstanceNormalization LRN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool
    Mean Min Mish Mod Mul Neg Not Or PRelu Pad Pow Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round Selu Sigmoid
    Sign Sin Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tanh Tile TopK
    Transpose Unsqueeze Upsample Where Xor
    Acos Acosh Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow CastLike
    Celu Constant ConstantOfShape Cosh CumProd Det Einsum EyeLike HammingWindow HannWindow Hardmax IsInf IsNaN
    MelWeightMatrix Range Shape Shrink Sinh Size SwiGLU Tan ThresholdedRelu Trilu
    AffineGrid CenterCropPad Col2Im DeformConv GatherND GlobalLpPool GridSample LpPool MaxRoiPool MaxUnpool OneHot
    ReverseSequence RoiAlign Scatter ScatterElements ScatterND TensorScatter
    LSTM GRU RNN Attention RotaryEmbedding LinearAttention CausalConvWithState RMSNormalization LpNormalization
    MeanVarianceNormalization NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss DFT STFT
"""
_REMOVED = {("Upsample", 10), ("Scatter", 11)}
"""Versions that only deprecate the op."""


def _versions(op_type):
    results = [schema.since_version for schema in _schemas() if schema.name == op_type]
    first = max((version for version in results if version <= 7), default=0)
    return [version for version in sorted(results) if version >= first]


def _schemas():
    return [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""]


@for_every(op_type=_OPS.split())
def test_every_version_since_opset_7_is_registered(op_type):
    expected = [version for version in _versions(op_type) if (op_type, version) not in _REMOVED]
    assert [each for each in converted()["", op_type] if not is_further("", op_type, each)] == expected


def test_every_registered_op_has_a_schema():
    schemas = onnx.defs.get_all_schemas_with_history()
    defined = {(schema.domain, schema.name, schema.since_version) for schema in schemas}
    registered = {(*op, version) for op, versions in converted().items() for version in versions}
    assert all(further_schema(*op) is not None for *op, _ in registered - defined)


@pytest.mark.parametrize("domain", ["", "ai.onnx.ml", "ai.onnx.preview.training"])
def test_every_schema_is_converted_or_refused_with_a_reason(domain):
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain:
            verdict = _verdict_on(schema)
            assert isinstance(verdict, Unsupported)
            assert verdict.detail
            known = lookup(domain, schema.name, schema.since_version) is not None
            reason, why = UNCONVERTED.get(schema.name, NO_CONVERTER)
            said = verdict.reason in _UNKNOWN or (verdict.reason, verdict.detail) == (reason, f"{schema.name} {why}")
            assert said is not known, f"{schema.name}-{schema.since_version}: {verdict}"


_UNKNOWN = {Reason.UNSUPPORTED_DOMAIN, Reason.UNSUPPORTED_VERSION}


def test_unconverted_ops_exist_and_have_no_converter():
    defined = {schema.name for schema in _schemas()}
    assert defined.issuperset(UNCONVERTED) and not {op for _, op in converted()} & UNCONVERTED.keys()


def _verdict_on(schema):
    """Return the verdict on a node without attributes and with inputs that fit no op: a refusal with a reason."""
    inputs = [f"x{index}" for index in range(max(1, min(schema.min_input, 5)))]
    node = helper.make_node(schema.name, inputs, ["y"], domain=schema.domain)
    values = {name: Value(name, "float32", (None,)) for name in (*inputs, "y")}
    return convert_graph([_read(node, schema.since_version)], values, {}, ["y"]).verdicts[0]


def _read(node, version):
    """Read the node without its schema's objections, which would hide the converter's refusal."""
    return replace(read_node(node, "node", version), contradiction="")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 2, 3, 3), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_malformed_nodes_get_a_verdict(count, shape):
    names = [f"x{index}" for index in range(count)]
    values = {name: Value(name, "float32", shape) for name in (*names, "y", "z")}
    constants = {name: np.ones(shape, np.int64) for name in names[1:]}
    for (domain, op_type), versions in converted().items():
        for version in versions:
            node = OnnxNode("node", op_type, domain, version, tuple(names), ("y", "z"))
            assert convert_graph([node], values, {}, ["y", "z"]).verdicts
            assert convert_graph([node], values, constants, ["y", "z"]).verdicts


@pytest.mark.parametrize(
    ("op_type", "domain", "reason"),
    [
        ("If", "", Reason.CONTROL_FLOW),
        ("Loop", "", Reason.CONTROL_FLOW),
        ("Bernoulli", "", Reason.UNSUPPORTED_OPERATION),
        ("Upsample", "", Reason.UNSUPPORTED_VERSION),
        ("Gelu", "acme", Reason.UNSUPPORTED_DOMAIN),
    ],
)
def test_reasons_for_unknown_ops(op_type, domain, reason):
    node = _read(helper.make_node(op_type, ["x"], ["y"], domain=domain), 12)
    assert convert_graph([node], {}, {}, ["y"]).verdicts[0].reason is reason


@pytest.mark.parametrize(
    ("op_type", "opset", "version"),
    [("Conv", 7, 1), ("Conv", 21, 11), ("Softmax", 12, 11), ("Gelu", 19, None), ("NoSuchOp", 13, None)],
)
def test_since_version(op_type, opset, version):
    assert since_version("", op_type, opset) == version
    assert since_version("ai.onnx", op_type, opset) == version


def test_a_second_converter_of_one_version_is_an_error():
    with pytest.raises(ValueError, match="Conv version 11 has a converter already"):
        converter("Conv", 11)(lambda context, node: None)
    with pytest.raises(ValueError, match="names no since_version"):
        converter("Conv")


def test_registry_view_is_read_only():
    with pytest.raises(TypeError):
        converted()["", "Conv"] = ()


def test_attributes_become_plain_values():
    node = helper.make_node(
        "Op", ["x"], ["y"], domain="ai.onnx", i=1, f=0.5, s="text", many=[1, 2], numbers=[0.5], texts=["a", "b"]
    )
    read = read_node(node, "name", 3)
    assert read.domain == ""
    assert read.attributes == {
        "i": 1,
        "f": 0.5,
        "s": "text",
        "many": (1, 2),
        "numbers": (0.5,),
        "texts": ("a", "b"),
    }


def test_a_tensor_attribute_becomes_an_array():
    tensor = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(helper.make_tensor("t", 1, [2], [1.0, 2.0])))
    read = read_node(helper.make_node("Constant", [], ["y"], value=tensor), "name", 13)
    assert read.attributes["value"].tolist() == [1.0, 2.0]
