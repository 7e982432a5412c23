import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import nnadapter as nna
from nnadapter.offering.left_sizes import sizes_left
from nnadapter.onnx.node import OnnxNode
from partition.graph import Value

RANDOM = np.random.default_rng(0)
LABELS = [0, 1, 2]
LINES = {"coefficients": [1.0] * 6, "intercepts": [0.0, 0.1, 0.2]}
TREE = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
LEAVES = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, 1], "weights": [1.0, 1.0]}
NODES = {
    "ArrayFeatureExtractor": ({}, [3]),
    "Binarizer": ({"threshold": 0.5}, []),
    "Imputer": ({"imputed_value_floats": [0.0], "replaced_value_float": 1.0}, []),
    "LabelEncoder": ({"keys_floats": [0.0], "values_floats": [1.0], "default_float": 2.0}, []),
    "LinearClassifier": ({**LINES, "classlabels_ints": LABELS}, []),
    "LinearRegressor": ({**LINES, "targets": 3}, []),
    "Normalizer": ({"norm": "L1"}, []),
    "OneHotEncoder": ({"cats_int64s": [0, 1, 2], "zeros": 1}, []),
    "Scaler": ({"offset": [0.0, 1.0], "scale": [1.0, 2.0]}, []),
    "SVMRegressor": (
        {
            "coefficients": [1.0, 1.0],
            "support_vectors": [1.0, 2.0, 3.0, 4.0],
            "rho": [0.0],
            "n_supports": 2,
            "kernel_type": "LINEAR",
            "kernel_params": [0.1, 0.0, 3.0],
        },
        [],
    ),
    "TreeEnsembleClassifier": (
        {**TREE, **{f"class_{name}": value for name, value in LEAVES.items()}, "classlabels_int64s": LABELS},
        [],
    ),
    "TreeEnsembleRegressor": (
        {**TREE, **{f"target_{name}": value for name, value in LEAVES.items()}, "n_targets": 2},
        [],
    ),
}
"""Attributes, and the dimensions of a second input of places."""


@pytest.mark.parametrize("op_type", NODES)
def test_sizes_are_those_of_onnxruntime(op_type):
    attributes, places = NODES[op_type]
    outputs = ["y", "z"] if "Classifier" in op_type else ["y"]
    node = helper.make_node(op_type, ["x", "i"] if places else ["x"], outputs, domain="ai.onnx.ml", **attributes)
    inputs = [helper.make_tensor_value_info("x", 1, ["N", 2])]
    inputs += [helper.make_tensor_value_info("i", 7, places)] * bool(places)
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model)
    read = OnnxNode("", op_type, "ai.onnx.ml", 3, tuple(node.input), tuple(outputs), attributes)
    for rows in (1, 5):
        feeds = {"x": RANDOM.random((rows, 2), np.float32), "i": np.zeros(places, np.int64)}
        session = onnxruntime.InferenceSession(model.SerializeToString())
        made = session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()})
        shapes = dict(zip(outputs, [each.shape for each in made], strict=True))
        values = {
            each.name: Value(each.name, shape=_stated(each, rows, shapes[each.name])) for each in inferred.graph.output
        }
        sizes = sizes_left(read, {"x": (rows, 2), "i": tuple(places)}.get, values)
        assert sizes == shapes


def test_nothing_is_said_of_a_node_that_contradicts_its_schema():
    node = OnnxNode("", "ArrayFeatureExtractor", "ai.onnx.ml", 1, ("x",), ("y",), {}, "it has 1 input, expected 2")
    assert sizes_left(node, {"x": (4, 3)}.get, {"y": Value("y", shape=(4, 2))}) == {}


def _stated(info, rows, shape):
    """What inference says at so many rows; where it says nothing, that there are so many axes."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return ("?",) * len(shape)
    sizes = [each.dim_value if each.HasField("dim_value") else "?" for each in tensor.shape.dim]
    return (rows, *sizes[1:])


def test_a_plan_serves_all_rows_behind_an_encoder():
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[N, 2] x, string[N, 1] c) => (float[N, 3] y) {
            code = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_floats = [1.0, 2.0]> (c)
            joined = Concat <axis = 1> (x, code)
            y = Relu (joined)
        }"""
    model = parser.parse_model(text)
    alone = onnxruntime.InferenceSession(model.SerializeToString())
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="allow")) as session:
        for rows in (2, 3, 5, 8, 4):
            names = RANDOM.choice(["a", "b", "c"], (rows, 1)).astype(object)
            feeds = {"x": RANDOM.standard_normal((rows, 2)).astype(np.float32), "c": names}
            np.testing.assert_array_equal(session.run(None, feeds)[0], alone.run(None, feeds)[0])
        assert session.report().plans.made == 2


@pytest.mark.parametrize(
    "scattered",
    [
        """found = NonZero (marked) places = Transpose <perm = [1, 0]> (found)
           mixed = ScatterND (words, places, features)""",
        """row = Reshape (marked, all) found = NonZero (row) places = Reshape (found, all)
           index = Unsqueeze (places, last) wide = Expand (index, width) rows = Reshape (words, flat)
           put = ScatterElements <axis = 0> (rows, wide, features) size = Shape (words) mixed = Reshape (put, size)""",
    ],
    ids=["by position", "by row"],
)
def test_a_plan_serves_all_lengths_behind_features_among_words(scattered):
    table = RANDOM.standard_normal((9, 4)).astype(np.float32)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (int64[B, T] ids, float[P, 4] pictures, float[9, 4] table) => (float[B, T, 4] y)
        <int64 picture = {{8}}, int64[1] all = {{-1}}, int64[1] last = {{-1}}, int64[2] width = {{1, 4}},
         int64[2] flat = {{-1, 4}}> {{
            words = Gather (table, ids)
            features = Tanh (pictures)
            marked = Equal (ids, picture)
            {scattered}
            y = Softmax (mixed)
        }}"""
    model = parser.parse_model(text)
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    alone = onnxruntime.InferenceSession(model.SerializeToString())
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="allow")) as session:
        for length, pictures in ((5, 2), (9, 4), (4, 3), (12, 7), (6, 2)):
            ids = RANDOM.integers(0, 8, 2 * length)
            ids[RANDOM.permutation(2 * length)[:pictures]] = 8
            feeds = {"ids": ids.reshape(2, length), "pictures": RANDOM.random((pictures, 4), np.float32)}
            np.testing.assert_allclose(session.run(None, feeds)[0], alone.run(None, feeds)[0], rtol=1e-5, atol=1e-6)
        report = session.report()
    assert report.plans.made == 2, report.plans
    assert {node.op_type for node in report.nodes if node.device == "fake_npu"} >= {
        "Gather",
        "Tanh",
        "Equal",
        "Softmax",
    }
