import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from nnadapter.onnx import OnnxIndex, extract, initializer_of, read_graph
from partition import GraphError, Value, cut, make_plan
from tests.partition.small_graphs import edges


def run(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def run_in_parts(model, placement, feeds, values=None):
    """Run the steps of a plan in order and discard values as the plan directs."""
    graph, index = read_graph(model, values=values), OnnxIndex.of(model)
    plan = make_plan(graph, sorted(set(placement)), {}, placement, cut(graph, placement).segments, exact=True)
    alive = dict(feeds)
    for step in plan.steps:
        part = extract(
            index, graph, nodes=step.nodes, inputs=step.inputs, constants=step.constants, outputs=step.outputs
        )
        made = run(part, {name: alive[name] for name in step.inputs}) if step.outputs else {}
        assert set(made) == set(step.outputs)
        alive.update(made)
        for name in step.released:
            del alive[name]
    return {name: alive[name] for name in graph.outputs if name in alive}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def float_model(predecessors, ops):
    """Return a model of elementwise float operations; unread values and every third value are outputs."""
    nodes, read = [], set()
    for index, (before, op_type) in enumerate(zip(predecessors, ops, strict=True)):
        reads = [f"v{each}" for each in sorted(before)] or ["x"]
        reads = [*reads, "w"][:2] if op_type in ("Add", "Mul", "Max") else reads[:1]
        read.update(reads)
        nodes.append(helper.make_node(op_type, reads, [f"v{index}"]))
    outputs = [f"v{index}" for index in range(len(nodes)) if f"v{index}" not in read or index % 3 == 0]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in outputs],
            [initializer_of("w", np.array([0.5, -1, 2], np.float32))],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )


@settings(max_examples=25, deadline=None)
@given(edges(most=8).filter(len), st.data())
def test_parts_in_order_equal_the_model(predecessors, data):
    count = len(predecessors)
    ops = [data.draw(st.sampled_from(["Add", "Mul", "Max", "Relu", "Tanh", "Neg"])) for _ in range(count)]
    placement = [data.draw(st.sampled_from("abc")) for _ in range(count)]
    model = float_model(predecessors, ops)
    feeds = {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
    known = {f"v{index}": Value(f"v{index}", "float32", ("n", 3), 4) for index in range(count)}
    assert_same(run_in_parts(model, placement, feeds, known), run(model, feeds))


def parse(text, header=""):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21{header}]>\n{text}')


BRANCHES = """
g (bool c, float[3] x) => (float[3] y, float[3] b) <float[3] w = {1, 2, 3}, float[3] k = {4, 5, 6}>
{
  a = Relu(x)
  b = Mul(a, w)
  y = If (c) <then_branch = t () => (float[3] t1) {t0 = Add(a, k) t1 = Mul(t0, b)},
              else_branch = e () => (float[3] e1) {e1 = Sub(w, b)}>
}"""


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("placement", ["abb", "aba", "aab", "abc"])
def test_captured_values_cross_a_cut(placement, condition):
    model = parse(BRANCHES)
    feeds = {"c": np.array(condition), "x": np.array([-1, 2, 3], np.float32)}
    known = {name: Value(name, "float32", (3,), 4) for name in "ab"}
    assert_same(run_in_parts(model, placement, feeds, known), run(model, feeds))


SEQUENCES = """
g (float[4, 2] x, int64 i) => (float[2, 2] y) <seq(float[2, 2]) s, seq(float[2, 2]) t>
{ s = SplitToSequence <axis = 0> (x, two)  t = SequenceInsert(s, z)  y = SequenceAt(t, i) }"""


@pytest.mark.parametrize("from_values", [True, False])
def test_sequences_cross_a_cut(from_values):
    model = parse(SEQUENCES)
    model.graph.initializer.append(initializer_of("two", np.array(2)))
    model.graph.initializer.append(initializer_of("z", np.ones((2, 2), np.float32)))
    known = {name: Value(name, "sequence(float32)") for name in "st"}
    if from_values:
        del model.graph.value_info[:]
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(4, 2), "i": np.array(1)}
    assert_same(run_in_parts(model, "aba", feeds, known if from_values else None), run(model, feeds))


def test_containers_keep_their_depth():
    model = parse(SEQUENCES.replace("two", "i").replace("z)", "x)"))
    graph = read_graph(model)
    part = extract(OnnxIndex.of(model), graph, nodes=[1], inputs=["s", "x"], constants=[], outputs=["t"])
    assert part.graph.input[0] == next(info for info in model.graph.value_info if info.name == "s")
    assert part.graph.output[0] == next(info for info in model.graph.value_info if info.name == "t")


@pytest.mark.parametrize(
    "dtype", ["sequence(float32)", "optional(sequence(int64))", "map(string, sequence(float32))", "sparse(float32)"]
)
def test_extracted_part_uses_types_of_the_caller(dtype):
    model = parse("g (float[1] x) => (float[1] y) {s = Mystery(x) y = Riddle(s)}")
    graph = read_graph(model, values={"s": Value("s", dtype)})
    part = extract(OnnxIndex.of(model), graph, nodes=[1], inputs=["s"], constants=[], outputs=["y"])
    assert read_graph(part).value("s").dtype == dtype


def test_unknown_types_and_shapes():
    model = parse("g (float[1] x) => (float[1] y) {a = Relu(x) b = Relu(a) y = Relu(b)}")
    graph = read_graph(model, values={"a": Value("a", "float32", None, 4)})
    part = extract(OnnxIndex.of(model), graph, nodes=[1], inputs=["a"], constants=[], outputs=["b"])
    assert not part.graph.input[0].type.tensor_type.HasField("shape")
    assert not part.graph.output[0].HasField("type")
    np.testing.assert_array_equal(run(part, {"a": np.ones(2, np.float32)})["b"], [1, 1])


FUNCTIONS = """
g (float[2] x) => (float[2] y) { a = f.outer(x)  b = f.unused(a)  y = Relu(a) }
<domain: "f", opset_import: ["" : 21, "f" : 1]> outer (p) => (q) { r = f.inner(p)  q = Neg(r) }
<domain: "f", opset_import: ["" : 21]> inner (p) => (q) { q = Add(p, p) }
<domain: "f", opset_import: ["" : 21]> unused (p) => (q) { q = Relu(p) }"""


def test_only_needed_functions_are_extracted():
    model = parse(FUNCTIONS, ', "f" : 1')
    graph, index = read_graph(model), OnnxIndex.of(model)
    part = extract(index, graph, nodes=[0], inputs=["x"], constants=[], outputs=["a"])
    assert sorted(function.name for function in part.functions) == ["inner", "outer"]
    np.testing.assert_array_equal(run(part, {"x": np.ones(2, np.float32)})["a"], [-2, -2])
    assert not extract(index, graph, nodes=[2], inputs=["a"], constants=[], outputs=["y"]).functions


def test_only_needed_constants_and_no_metadata():
    model = float_model([set(), {0}], ["Relu", "Add"])
    model.graph.initializer.append(initializer_of("unused", np.zeros(1000)))
    model.metadata_props.add(key="k", value="v")
    graph = read_graph(model)
    part = extract(OnnxIndex.of(model), graph, nodes=[1], inputs=["v0"], constants=["w"], outputs=["v1"])
    assert [tensor.name for tensor in part.graph.initializer] == ["w"]
    assert not part.metadata_props
    assert part.graph.node[0] == model.graph.node[1]
    onnx.checker.check_model(part, full_check=True)


def test_initializers_of_old_models_are_no_inputs():
    model = parse("g (float[1] x, float[1] w = {1}) => (float[1] y) {y = Add(x, w)}")
    model.ir_version = 3
    part = extract(OnnxIndex.of(model), read_graph(model), nodes=[0], inputs=["x"], constants=["w"], outputs=["y"])
    assert [info.name for info in part.graph.input] == ["x"]
    onnx.checker.check_model(part)


def test_sparse_constants_and_missing_ones():
    model = parse("g (float[2] x) => (float[2] y) {y = Add(x, s)}")
    values = initializer_of("s", np.ones(1, np.float32))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, initializer_of("", np.array([1])), [2]))
    graph, index = read_graph(model), OnnxIndex.of(model)
    part = extract(index, graph, nodes=[0], inputs=["x"], constants=["s"], outputs=["y"])
    np.testing.assert_array_equal(run(part, {"x": np.ones(2, np.float32)})["y"], [1, 2])
    with pytest.raises(GraphError, match="'w' has no initializer"):
        extract(index, graph, nodes=[0], inputs=["x"], constants=["w"], outputs=["y"])
