"""Forms withheld from a provider that computes them wrongly, and similar correct ones."""

from __future__ import annotations

import onnx.parser
from onnx import helper

from nnadapter.drivers.execution_providers import Backing, computes_half, float16_nodes, miscomputed_nodes
from tests.every import for_every
from tests.models import HEAD

CUDA, QNN, WEB_GPU = "CUDAExecutionProvider", "QNNExecutionProvider", "WebGpuExecutionProvider"
CASES = {
    "Gelu of a scalar": (CUDA, "float", "float", "Gelu(x)", True),
    "Gelu": (CUDA, "float[2]", "float[2]", "Gelu(x)", False),
    "Gelu of a scalar, elsewhere": (QNN, "float", "float", "Gelu(x)", False),
    "LRN of a row": (CUDA, "float[2, 3, 4]", "float[2, 3, 4]", "LRN<size = 1>(x)", True),
    "LRN": (CUDA, "float[2, 3, 4, 4]", "float[2, 3, 4, 4]", "LRN<size = 1>(x)", False),
    "LogSoftmax of double": (CUDA, "double[2, 3]", "double[2, 3]", "LogSoftmax(x)", True),
    "LogSoftmax": (CUDA, "float[2, 3]", "float[2, 3]", "LogSoftmax(x)", False),
    "LayerNormalization of double": (CUDA, "double[2, 3]", "double[2, 3]", "LayerNormalization(x, w)", True),
    "RMSNormalization": (CUDA, "float[2, 3]", "float[2, 3]", "RMSNormalization(x, w)", False),
    "RMSNormalization, one scale for all": (
        CUDA,
        "float[2, 2, 3]",
        "float[2, 2, 3]",
        "RMSNormalization<axis = -2>(x, w)",
        True,
    ),
    "ReduceMax of nothing": (CUDA, "int64[0, 3]", "int64[1, 1]", "ReduceMax(x)", True),
    "ReduceMax": (CUDA, "float[2, 3]", "float[1, 1]", "ReduceMax(x)", True),
    "ReduceMax of integers": (CUDA, "int64[2, 3]", "int64[1, 1]", "ReduceMax(x)", False),
    "Cast of float8 to bool": (CUDA, "float8e5m2[2]", "bool[2]", "Cast<to = 9>(x)", True),
    "Cast": (CUDA, "float[2]", "bool[2]", "Cast<to = 9>(x)", False),
    "Cast to 4 bits": (CUDA, "float[2]", "float4e2m1[2]", "Cast<to = 23>(x)", True),
    "HardSigmoid of double": (CUDA, "double[2]", "double[2]", "HardSigmoid(x)", True),
    "HardSigmoid": (CUDA, "float[2]", "float[2]", "HardSigmoid(x)", False),
    "Shrink of what has no sign": (CUDA, "uint64[2]", "uint64[2]", "Shrink<bias = 1.0>(x)", True),
    "Shrink": (CUDA, "int64[2]", "int64[2]", "Shrink<bias = 1.0>(x)", False),
    "MatMul by a vector": (WEB_GPU, "float[2, 3]", "float[2]", "MatMul(x, w)", True),
    "MatMul": (WEB_GPU, "float[3, 3]", "float[3, 3]", "MatMul(x, x)", False),
    "Softmax of nothing": (WEB_GPU, "float[0, 3]", "float[0, 3]", "Softmax(x)", True),
    "Softmax": (WEB_GPU, "float[2, 3]", "float[2, 3]", "Softmax(x)", False),
    "Mish": (QNN, "float[2]", "float[2]", "Mish(x)", True),
}


@for_every(name=CASES)
def test_wrong_forms_are_withheld_from_a_provider(name):
    provider, inputs, outputs, node, refused = CASES[name]
    head = HEAD.replace("17", "23")
    text = f"{head} g ({inputs} x) => ({outputs} y) <float[3] w = {{1, 2, 3}}> {{ y = {node} }}"
    flaws = miscomputed_nodes(onnx.parser.parse_model(text), provider)
    assert bool(flaws) == refused and all(provider in verdict.detail for verdict in flaws.values())


def microsoft(op_type, inputs, **attributes):
    """Return a model of one node; each letter of `inputs` names an input, "_" an absent one."""
    names = ["" if name == "_" else name for name in inputs]
    node = helper.make_node(op_type, names, ["y"], domain="com.microsoft", **attributes)
    return helper.make_model(helper.make_graph([node], "g", [], []))


@for_every(
    case=[
        ("GatherBlockQuantized", "abc", {}, False),
        ("GatherBlockQuantized", "abcz", {}, True),
        ("GroupQueryAttention", "qkvpplt", {}, False),
        ("GroupQueryAttention", "qkvpplt___b", {}, False),
        ("GroupQueryAttention", "qkvpplt___bs", {}, True),
        ("GroupQueryAttention", "qkvpplt____s", {}, False),
        ("GroupQueryAttention", "qkvpplt___b", {"smooth_softmax": 1}, True),
        ("GroupQueryAttention", "qkvpplt", {"smooth_softmax": 1}, False),
    ]
)
def test_wrong_com_microsoft_forms_are_withheld_from_cuda(case):
    op_type, inputs, attributes, refused = case
    assert bool(miscomputed_nodes(microsoft(op_type, inputs, **attributes), CUDA)) == refused


REPEATED = {
    "a table of places": ("float[2, 16, 32]", "float[1, 16, 32]", "Add", "LayerNormalization(a, w)", True),
    "the same without its batch": ("float[2, 16, 32]", "float[16, 32]", "Add", "Sigmoid(a)", True),
    "the other way round": ("float[16, 32]", "float[2, 16, 32]", "Mul", "Exp(a)", True),
    "heads": ("float[2, 3, 16, 32]", "float[2, 1, 16, 32]", "Mul", "Sigmoid(a)", True),
    "several pictures": ("float[2, 3, 16, 32]", "float[1, 3, 16, 32]", "Add", "Sigmoid(a)", False),
    "a row": ("float[2, 16, 32]", "float[32]", "Add", "LayerNormalization(a, w)", False),
    "channels": ("float[2, 3, 16, 32]", "float[2, 3, 1, 1]", "Mul", "Sigmoid(a)", False),
    "alike": ("float[2, 16, 32]", "float[2, 16, 32]", "Add", "LayerNormalization(a, w)", False),
    "a mask": ("float[2, 3, 16, 32]", "float[2, 1, 16, 32]", "Add", "Softmax(a)", False),
    "another op": ("float[2, 16, 32]", "float[1, 16, 32]", "Sub", "LayerNormalization(a, w)", False),
}


@for_every(name=REPEATED)
def test_repeated_matrix_with_other_readers_is_withheld_from_qnn(name):
    inputs, other, op_type, reader, refused = REPEATED[name]
    weights = ", ".join(["1"] * 32)
    text = f"""{HEAD} g ({inputs} x, {other} p) => (float y) <float[32] w = {{{weights}}}> {{
        a = {op_type} (x, p)
        y = {reader}
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert list(miscomputed_nodes(model, QNN)) == [0] * refused and not miscomputed_nodes(model, WEB_GPU)


def test_float16_is_withheld_from_a_provider_without_it():
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Cast<to = 10>(x) b = Relu(a) c = Cast<to = 1>(b) y = Relu(c) }}"
    )
    assert float16_nodes(model, WEB_GPU).keys() == {0, 1, 2} and not float16_nodes(model, CUDA)
    assert computes_half(Backing(provider="CPUExecutionProvider"))
    assert not computes_half(Backing(provider="RknpuExecutionProvider"))
