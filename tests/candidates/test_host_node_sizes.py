import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import nnadapter as nna
from nnadapter.candidates import sizes_left
from nnadapter.onnx import OnnxNode
from partition import Value

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
"""Attributes, and the dimensions of a second input of indices."""


@pytest.mark.parametrize("op_type", NODES)
def test_sizes_equal_onnxruntime(op_type):
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
        result = session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()})
        shapes = dict(zip(outputs, [each.shape for each in result], strict=True))
        values = {
            each.name: Value(each.name, shape=_stated(each, rows, shapes[each.name])) for each in inferred.graph.output
        }
        sizes = sizes_left(read, {"x": (rows, 2), "i": tuple(places)}.get, values)
        assert sizes == shapes


def test_node_that_contradicts_its_schema_has_no_sizes():
    node = OnnxNode("", "ArrayFeatureExtractor", "ai.onnx.ml", 1, ("x",), ("y",), {}, "it has 1 input, expected 2")
    assert sizes_left(node, {"x": (4, 3)}.get, {"y": Value("y", shape=(4, 2))}) == {}


def _stated(info, rows, shape):
    """Return the inferred shape at this number of rows; if none was inferred, only the rank."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return ("?",) * len(shape)
    sizes = [each.dim_value if each.HasField("dim_value") else "?" for each in tensor.shape.dim]
    return (rows, *sizes[1:])


def test_plan_serves_all_rows_after_an_encoder():
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
        assert session.report().plans.compiled == 2


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
def test_plan_serves_all_lengths_after_inserted_features(scattered):
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
    assert report.plans.compiled == 2, report.plans
    assert {node.op_type for node in report.nodes if node.device == "fake_npu"} >= {
        "Gather",
        "Tanh",
        "Equal",
        "Softmax",
    }


_PICTURES = '<ir_version: 8, opset_import: ["" : 18]> g (float[n, 2, h, w] x) => (float[a, b, c, d] y)'
RESIZES = {
    "cubic, by scales": '<float[4] s = {1, 1, 2, 1.5}> { r = Resize <mode = "cubic"> (x, , s)',
    "cubic, by sizes": """<int64[1] two = {2}, int64[1] four = {4}, int64[1] none = {0}> {
        all = Shape (x) kept = Slice (all, none, two) sides = Slice (all, two, four)
        twice = Mul (sides, two) sizes = Concat <axis = 0> (kept, twice)
        r = Resize <mode = "cubic"> (x, , , sizes)""",
    "without steps": '<float[4] s = {1, 1, 0.5, 0.5}> { r = Resize <mode = "linear", antialias = 1> (x, , s)',
    "of a part": """<float[4] s = {1, 1, 2, 2}, float[8] part = {0, 0, 0, 0.1, 1, 1, 1, 0.9}> {
        r = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (x, part, s)""",
}


@pytest.mark.parametrize("kind", RESIZES)
def test_resize_on_the_host_keeps_sizes_dynamic(kind):
    model = parser.parse_model(f"{_PICTURES} {RESIZES[kind]} y = Tanh (r) }}")
    whole = onnxruntime.InferenceSession(model.SerializeToString())
    with nna.InferenceSession(model, devices="fake_npu") as session:
        for n, h, w in ((2, 8, 12), (2, 9, 8), (3, 7, 16), (2, 12, 7)):
            feed = {"x": RANDOM.standard_normal((n, 2, h, w), np.float32)}
            np.testing.assert_allclose(session.run(None, feed)[0], whole.run(None, feed)[0], rtol=1e-5, atol=1e-6)
        report = session.report()
    assert report.plans.compiled == 2 and report.plans.served_shapes_text == "one plan for all input shapes", (
        report.plans
    )
    assert [segment.device for segment in report.segments] == ["cpu", "fake_npu"]


CHANCES = {
    "RandomNormalLike": "r = RandomNormalLike (p)",
    "RandomUniformLike": "r = RandomUniformLike (p)",
    "Bernoulli": "r = Bernoulli (p)",
    "Dropout": "r = Dropout (p, half, yes)",
    "Multinomial": "drawn = Multinomial <sample_size = 3> (p) r = Cast <to = 1> (drawn)",
}


@pytest.mark.parametrize("op_type", CHANCES)
def test_random_ops_keep_sizes_dynamic(op_type):
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]> g (float[n, m] x) => (float[a, b] y)
    <float half = {{0.5}}, bool yes = {{1}}> {{ p = Sigmoid (x) {CHANCES[op_type]} y = Tanh (r) }}""")
    with nna.InferenceSession(model, devices="fake_npu") as session:
        for shape in ((2, 8), (3, 5), (4, 9), (2, 3)):
            (result,) = session.run(None, {"x": RANDOM.standard_normal(shape, np.float32)})
            assert result.shape == (shape if op_type != "Multinomial" else (shape[0], 3)) and not np.isnan(result).any()
        report = session.report()
    assert report.plans.compiled == 2 and report.plans.served_shapes_text == "one plan for all input shapes", (
        report.plans
    )
    assert [segment.device for segment in report.segments] == ["fake_npu", "cpu", "fake_npu"]
