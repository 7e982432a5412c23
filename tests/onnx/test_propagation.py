from __future__ import annotations

import subprocess
import sys

import pytest
from onnx import TensorProto

from nnadapter.candidates import prepare
from nnadapter.onnx import infer, parse, values_of
from nnadapter.onnx.preparation import specialize

HEAD = '<ir_version: 10, opset_import: ["" : 17]> g'
HUGE = (1 << 30) - 1
"""The product with 2 is still below the size limit of one value."""
CONSTANTS = "<int64[1] zero = {0}, int64[1] one = {1}>"
MOST_BYTES = 4 << 30
NODES = [
    "y = Gather(x, zero)",
    "y = Add(x, x)",
    "y = Sub(x, x)",
    "y = Mul(x, x)",
    "y = Concat<axis = 0>(x, x)",
    "y = Cast<to = 7>(x)",
    "y = Slice(x, zero, one)",
    "y = Squeeze(x)",
    "y = Unsqueeze(x, zero)",
    "y = Size(x)",
    "h = Relu(x) y = Add(h, h)",
    "s = Shape(x) t = Concat<axis = 0>(s, one) r = Reshape(x, t) f = Reshape(r, s) y = Add(f, f)",
    "c = Cast<to = 9>(zero) y = If(c) <then_branch = t () => (p) { p = Add(x, x) }, "
    "else_branch = e () => (q) { q = Sub(x, x) }>",
]
PROGRAM = f"""
import resource, sys
from nnadapter.onnx.construction import parse
import nnadapter as nna
resource.setrlimit(resource.RLIMIT_AS, ({MOST_BYTES}, {MOST_BYTES}))
for text in sys.argv[1:]:
    print(str(nna.partition_report(parse(text), devices=["fake_npu", "cpu"]))[:1])
"""


def test_output_with_one_possible_type_has_it():
    """onnx infers no type for the second result of TreeEnsembleClassifier."""
    text = """<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 1]> g (float[2, 3] x) => (y) {
        label, score = ai.onnx.ml.TreeEnsembleClassifier<classlabels_int64s = [0, 1]>(x) h = Relu(score) y = Neg(h) }"""
    types = infer(parse(text))
    assert types["score"].type.tensor_type.elem_type == types["h"].type.tensor_type.elem_type == TensorProto.FLOAT


@pytest.mark.slow
def test_huge_declared_vectors_need_no_memory():
    texts = [f"{HEAD} (float[{HUGE}] x) => (y) {CONSTANTS} {{ {nodes} }}" for nodes in NODES]
    process = subprocess.run([sys.executable, "-c", PROGRAM, *texts], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    assert len(process.stdout.split()) >= len(NODES)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("(float[n, 4] x) => (y) <int64[1] t = {2}> { s = Shape(x) e = Concat<axis=0>(s, t) y = ConstantOfShape(e) }",
         {"y": ("n", 4, 2)}),
        ("(float[2, 3] x, float[500] v) => (y, z) <int64[1] t = {1}> { s = Shape(x) e = Concat<axis=0>(s, t) "
         "y = Reshape(x, e) z = Mul(v, v) }", {"y": (2, 3, 1), "z": (500,)}),
        ("(float[2, 300] x) => (y, z) <int64[1] a = {0}, int64[1] b = {1}> { s = Shape(x) i = Gather(s, a) "
         "j = Gather(s, b) n = Mul(i, j) y = Reshape(x, n) z = Add(y, y) }", {"y": (600,), "z": (600,)}),
        ("(float[2, 300] x, float[600] v) => (y, z) <int64[1] a = {0}> { s = Shape(x) n = Gather(s, a) "
         "c = Concat<axis=0>(v, v) z = Slice(c, a, n) k = Cast<to = 1>(c) y = Add(k, v) }", {}),
    ],
)  # fmt: skip
def test_computed_shapes_are_inferred(text, shapes):
    """Inference node by node finds shapes that inference of the entire model may miss."""
    model = parse(f"{HEAD} {text}")
    found = specialize(prepare(model), {}).graph.values
    known = values_of(infer(model).values())
    for name, shape in shapes.items():
        assert shape in (found[name].shape, known[name].shape)


SCHEMAS = """
import sys
from itertools import combinations
import onnx
from onnx import AttributeProto, TensorProto, helper
from nnadapter.onnx.propagation import FAILURES, infer

CONTENTS = {
    AttributeProto.FLOAT: 1.0, AttributeProto.INT: 1, AttributeProto.STRING: "a", AttributeProto.FLOATS: [1.0],
    AttributeProto.INTS: [0], AttributeProto.STRINGS: ["a"],
    AttributeProto.TENSOR: helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0]),
    AttributeProto.GRAPH: helper.make_graph([], "body", [], []),
    AttributeProto.TYPE_PROTO: helper.make_tensor_type_proto(1, [1]),
}

def attribute(schema, name):
    return helper.make_attribute(name, CONTENTS[schema.attributes[name].type])

def model(schema, names, inputs, typed):
    node = helper.make_node(schema.name, [f"x{at}" for at in range(inputs)], ["y"], domain=schema.domain)
    node.attribute.extend(attribute(schema, name) for name in names if schema.attributes[name].type in CONTENTS)
    values = [onnx.ValueInfoProto(name=f"x{at}") for at in range(inputs)]
    for value in values[1 if typed == "others" else 0:] if typed != "none" else []:
        value.type.tensor_type.elem_type = 0 if typed == "no element" else 1
    imports = [helper.make_opsetid(*entry) for entry in {"": 17, schema.domain: schema.since_version}.items()]
    graph = helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=imports, ir_version=10)

for schema in onnx.defs.get_all_schemas_with_history():
    needed = [name for name, stated in schema.attributes.items() if stated.required]
    others = [name for name, stated in schema.attributes.items() if not stated.required]
    inputs = max(schema.min_input, min(schema.max_input, len(schema.inputs)))
    for chosen in ([], others, *combinations(others, 1)):
        for typed in ("none", "others", "all", "no element"):
            print(schema.domain, schema.name, schema.since_version, chosen, typed, flush=True)
            try:
                infer(model(schema, [*needed, *chosen], inputs, typed))
            except FAILURES:
                pass
"""


@pytest.mark.sweep
def test_missing_types_crash_no_operator():
    process = subprocess.run([sys.executable, "-c", SCHEMAS], capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"at {process.stdout.splitlines()[-1:]}: {process.stderr[-500:]}"


ENCODER = 'ai.onnx.ml.LabelEncoder<keys_floats = [1.0], values_strings = ["a"], default_string = "b">'
UNTYPED = """<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 2, "mine" : 1]>
g (float[2, 2] x, bool c) => (string[N, M] y) {
  t = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_falsenodeids = [0], nodes_featureids = [0],
    nodes_modes = ["LEAF"], nodes_nodeids = [0], nodes_treeids = [0], nodes_truenodeids = [0], nodes_values = [0.0],
    target_ids = [0], target_nodeids = [0], target_treeids = [0], target_weights = [1.0]> (x)
"""
READERS = [
    f"y = {ENCODER}(t) }}",
    f"y = If(c) <then_branch = a () => (string[N, M] p) {{ p = {ENCODER}(t) }}, "
    f"else_branch = b () => (string[N, M] q) {{ q = {ENCODER}(x) }}> }}",
    'y = mine.encode(t) } <domain: "mine", opset_import: ["ai.onnx.ml" : 2]> encode (u) => (v) '
    f"{{ v = {ENCODER}(u) }}",
]
SESSIONS = """
import sys
import numpy as np
import nnadapter as nna
from nnadapter.onnx.construction import parse
for text in sys.argv[1:]:
    session = nna.InferenceSession(parse(text), devices=["fake_npu", "cpu"])
    print(session.run(None, {"x": np.ones((2, 2), np.float32), "c": np.array(True)})[0].tolist())
"""


@pytest.mark.slow
def test_models_with_unknown_types_run():
    texts = [UNTYPED + reader for reader in READERS]
    process = subprocess.run([sys.executable, "-c", SESSIONS, *texts], capture_output=True, text=True, check=False)
    assert process.stdout.splitlines() == ["[['a'], ['a']]"] * len(READERS), process.stderr[-500:]


def test_a_label_encoder_of_known_type_is_inferred():
    text = f"g (float[2, 3] x) => (y) {{ h = Relu(x) e = {ENCODER}(h) y = Identity(e) }}"
    types = infer(parse(f'<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 2]> {text}'))
    assert values_of([types["y"]])["y"].dtype == "string"
