import numpy as np
import onnx.parser
import pytest

from nnadapter.converters import OnnxNode, convert_graph
from nnadapter.drivers import SUPPORTED, Reason
from nnadapter.ir import Lifetime, verify
from nnadapter.ir.definition import by_definition
from nnadapter.onnx import Refusal
from partition import Value
from tests.converters.single_node import convert


def _parse(text):
    model = onnx.parser.parse_model(text)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


_HOLES = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) {
    a = Relu(x)
    b = Det2(a)
    c = Sigmoid(b)
    y = Add(a, c)
}
"""


def _with_hole():
    model = onnx.parser.parse_model(_HOLES.replace("Det2", "Bernoulli"))
    return convert(onnx.shape_inference.infer_shapes(model))


def test_outputs_of_a_refused_node_are_model_inputs():
    conversion = _with_hole()
    verify(conversion.model)
    assert [bool(verdict) for verdict in conversion.verdicts] == [True, False, True, True]
    assert conversion.operations == ((0,), (), (1,), (2,))
    assert [conversion.model.operands[index].name for index in conversion.model.inputs] == ["x", "b"]
    assert conversion.flops == (6, None, 24, 6)


def test_inputs_of_a_refused_node_are_model_outputs():
    conversion = _with_hole()
    assert {conversion.model.operands[index].name for index in conversion.model.outputs} == {"a", "y"}
    assert conversion.model.operands[conversion.operand_of["a"]].lifetime is Lifetime.MODEL_OUTPUT


def test_operations_have_the_origin_of_their_node():
    model = _parse("""
        <ir_version: 8, opset_import: ["" : 13]>
        g (float[2,3] x) => (float[2,1] y) { [lse] y = ReduceLogSumExp <axes = [1]> (x) }
    """)
    conversion = convert(model)
    assert len(conversion.operations[0]) > 1
    assert {operation.origins for operation in conversion.model.operations} == {(model.graph.node[0].name or "0",)}


def test_values_read_only_by_subgraphs_are_outputs():
    node = OnnxNode("n", "Relu", "", 14, ("x",), ("y",))
    values = {name: Value(name, "float32", (2,)) for name in "xy"}
    assert convert_graph([node], values, {}, [], captured=["y"]).model.outputs


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Value("x", "float32", ("N", 3)), Reason.DYNAMIC_SHAPE),
        (Value("x", "float32", None), Reason.DYNAMIC_SHAPE),
        (Value("x", "float32", (None, 3), data_dependent=True), Reason.DATA_DEPENDENT_SHAPE),
        (Value("x", "string", (2, 3)), Reason.UNSUPPORTED_TYPE),
        (Value("x", "sequence(float32)", None), Reason.UNSUPPORTED_TYPE),
        (Value("x", "complex64", (2, 3)), Reason.UNSUPPORTED_TYPE),
        (Value("x"), Reason.UNSUPPORTED_TYPE),
    ],
)
def test_values_that_cannot_be_operands_are_refused(value, reason):
    node = OnnxNode("n", "Relu", "", 14, ("x",), ("y",))
    values = {"x": value, "y": Value("y", "float32", (2, 3))}
    verdict = convert_graph([node], values, {}, ["y"]).verdicts[0]
    assert verdict.reason is reason
    assert "'x'" in verdict.detail


@pytest.mark.parametrize("declared", [Value("y", "float32", (3, 2)), Value("y", "float64", (2, 3))])
def test_declared_type_that_contradicts_inference_is_refused(declared):
    node = OnnxNode("n", "Relu", "", 14, ("x",), ("y",))
    values = {"x": Value("x", "float32", (2, 3)), "y": declared}
    verdict = convert_graph([node], values, {}, ["y"]).verdicts[0]
    assert verdict.reason is Reason.INVALID_NODE
    assert "float32[2, 3]" in verdict.detail


def test_refused_node_adds_nothing_to_the_model():
    # The schema refuses the convolution after its weights were reshaped for a sequence.
    node = OnnxNode("n", "Conv", "", 11, ("x", "w"), ("y",))
    values = {
        "x": Value("x", "float32", (1, 3, 8)),
        "w": Value("w", "float32", (4, 2, 3)),
        "y": Value("y", "float32", (1, 4, 6)),
    }
    conversion = convert_graph([node], values, {}, ["y"])
    assert conversion.verdicts[0].reason is Reason.INVALID_NODE
    assert not conversion.model.operands
    assert not conversion.operand_of


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (OnnxNode("n", "Elu", "", 6, ("x",), ("y",), {"alpha": "wrong"}), "alpha"),
        (OnnxNode("n", "Split", "", 18, ("x",), ("y",), {"num_outputs": 0}), "num_outputs"),
        (OnnxNode("n", "Upsample", "", 7, ("x",), ("y",), {"scales": (1.0, float("nan"))}), "scales"),
        (OnnxNode("n", "LRN", "", 13, ("x",), ("y",)), "size"),
        (OnnxNode("n", "Add", "", 14, ("x",), ("y",)), "required input"),
        (OnnxNode("n", "Relu", "", 14, ("x",), ("y", "z")), "'z'"),
    ],
)
def test_nodes_that_contradict_their_schema(node, words):
    values = {name: Value(name, "float32", (2, 3)) for name in "xyz"}
    verdict = convert_graph([node], values, {}, ["y", "z"]).verdicts[0]
    assert verdict.reason is Reason.INVALID_NODE
    assert words in verdict.detail


def test_a_constant_is_shared_and_not_copied():
    weights = np.ones((4, 3), np.float32)
    weights.flags.writeable = False
    nodes = [OnnxNode(f"n{index}", "Add", "", 14, ("x", "w"), (f"y{index}",)) for index in range(2)]
    values = {name: Value(name, "float32", (4, 3)) for name in ("x", "y0", "y1")}
    model = convert_graph(nodes, values, {"w": weights}, ["y0", "y1"]).model
    assert sum(operand.value is not None for operand in model.operands) == 1
    assert np.shares_memory(next(operand.value for operand in model.operands if operand.value is not None), weights)


def test_refused_node_may_produce_a_graph_output():
    node = OnnxNode("n", "NonZero", "", 13, ("x",), ("y",))
    conversion = convert_graph([node], {"x": Value("x", "float32", (2,))}, {}, ["y"])
    assert conversion.model.outputs == ()
    assert SUPPORTED not in conversion.verdicts


def test_chain_of_operations_is_converted():
    model = _parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1,2,4,4] x) => (float[1,2] y)
        <float[2,2,3,3] w = {0,1,0,1,1,1,0,1,0,0,0,0,0,1,0,0,0,0,1,0,0,0,1,0,0,0,1,0,0,0,0,2,0,0,0,0}> {
            a = Conv <pads = [1,1,1,1]> (x, w)
            b = Relu(a)
            c = GlobalAveragePool(b)
            y = Flatten(c)
        }
    """)
    conversion = convert(model)
    assert all(conversion.verdicts)
    (y,) = by_definition(conversion.model, [np.ones((1, 2, 4, 4), np.float32)])
    assert y.shape == (1, 2)


def test_refusals_carry_a_verdict():
    assert Refusal(Reason.NOT_CONSTANT, "words").verdict.detail == "words"


def test_names_resembling_generated_ones_are_allowed():
    """The largest of three becomes two operations, and the first of them produces an unnamed value."""
    nodes = [
        OnnxNode(f"n{name}", "Max", "", 13, inputs, (name,))
        for name, inputs in (("y", ("x", "z", "x")), ("%4", ("x", "y", "x")), ("%2", ("%4", "x", "z")))
    ]
    values = {name: Value(name, "float32", (2, 3), 4) for name in ("x", "z", "y", "%4", "%2")}
    actual = convert_graph(nodes, values, {}, ["%2", "%4"])
    assert actual.verdicts == (SUPPORTED,) * 3
    verify(actual.model)
    assert [actual.model.operands[index].name for index in actual.model.outputs] == ["%2", "%4"]
    x, z = np.random.default_rng(0).random((2, 2, 3)).astype(np.float32)
    for result in by_definition(actual.model, [x, z]):
        np.testing.assert_array_equal(result, np.maximum(x, z))
