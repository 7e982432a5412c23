import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from nnadapter.onnx import initializer_of, node_names, read_graph, read_nodes
from partition import GraphError, Value


def model_of(text, ir_version=10):
    return onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : 21]>\n{text}')


def test_nodes_values_and_constants():
    graph = read_graph(
        model_of(
            """g (float[N, 3, 4] x, int64 s) => (float[N, 2] y, int64 s2)
               <float[12, 2] w = {1}, float16[3] unused = {1, 2, 3}, float[N, 12] flat>
               { flat = Flatten(x)  y = MatMul(flat, w)  s2 = Identity(s) }"""
        )
    )
    assert [node.op_type for node in graph.nodes] == ["Flatten", "MatMul", "Identity"]
    assert [node.name for node in graph.nodes] == ["Flatten_0", "MatMul_1", "Identity_2"]
    assert graph.nodes[1].origins == ("MatMul_1",)
    assert (graph.inputs, graph.outputs, graph.constants) == (("x", "s"), ("y", "s2"), {"w", "unused"})
    assert graph.value("x") == Value("x", "float32", ("N", 3, 4), 4)
    assert graph.value("flat") == Value("flat", "float32", ("N", 12), 4)
    assert graph.value("w").nbytes == 96
    assert graph.value("s") == Value("s", "int64", (), 8)


def test_values_of_the_caller_take_precedence():
    model = model_of("g (float[N] x) => (float[N] y) {y = Relu(x)}")
    known = Value("x", "float32", (7,), 4)
    graph = read_graph(model, values={"x": known}, origins=[("p", "q")])
    assert (graph.value("x"), graph.value("y").shape) == (known, ("N",))
    assert (graph.nodes[0].name, graph.nodes[0].origins) == ("Relu_0", ("p", "q"))


def test_nodes_already_read_are_reused():
    model = model_of("g (float[N] x) => (float[N] y) {a = Relu(x) y = Add(a, x)}")
    nodes = read_nodes(model)
    graph, fresh = read_graph(model, nodes=nodes), read_graph(model)
    assert graph.nodes is nodes and nodes == fresh.nodes
    assert (graph.values, graph.inputs, graph.outputs) == (fresh.values, fresh.inputs, fresh.outputs)
    assert [node.origins for node in read_nodes(model, [("o",), ()])] == [("o",), ()]


@pytest.mark.parametrize(("ir_version", "constant"), [(3, True), (4, False)])
def test_initializer_that_is_an_input(ir_version, constant):
    model = model_of("g (float[1] x, float[1] w = {1}) => (float[1] y) {y = Add(x, w)}", ir_version)
    assert {info.name for info in model.graph.input} == {"x", "w"}
    graph = read_graph(model)
    assert ("w" in graph.constants, "w" in graph.inputs) == (constant, not constant)


def test_names_are_unique_and_stable():
    def named(*names):
        nodes = [helper.make_node("Relu", ["x"], [f"y{index}"], name=name) for index, name in enumerate(names)]
        return node_names(helper.make_model(helper.make_graph(nodes, "g", [], [])))

    assert named("a", "", "b") == ("a", "Relu_1", "b")
    assert named("a", "a", "") == ("Relu_0", "Relu_1", "Relu_2")
    assert named("", "Relu_0", "Relu_0_1") == ("Relu_0_2", "Relu_0", "Relu_0_1")
    assert named("", "Relu_0", "") == ("Relu_0_1", "Relu_0", "Relu_2")


def test_captured_values_at_any_depth():
    graph = read_graph(
        model_of(
            """g (bool c, float[1] x, float[1] z) => (float[1] y) <float[1] w = {1}>
            {
              a = Relu(x)
              y = If (c) <
                then_branch = t () => (float[1] t1) {
                  b = Add(a, w)
                  t1 = If (c) <then_branch = i () => (float[1] i1) {i1 = Mul(b, z)},
                               else_branch = j () => (float[1] j1) {j1 = Neg(z)}>
                },
                else_branch = e () => (float[1] e1) {e1 = Neg(a)}
              >
            }"""
        )
    )
    assert graph.nodes[1].captured == ("a", "w", "c", "z")
    assert graph.consumers["z"] == (1,)


def test_a_branch_may_return_an_outer_value():
    branch = helper.make_graph([], "b", [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "cxy"]
    assert read_graph(helper.make_model(helper.make_graph([node], "g", info[:2], info[2:]))).nodes[0].captured == ("x",)


def test_sparse_initializers_are_constants():
    model = model_of("g (float[2] x) => (float[2] y) {y = Add(x, s)}")
    values = initializer_of("s", np.ones(1, np.float32))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, initializer_of("", np.array([1])), [2]))
    graph = read_graph(model)
    assert graph.constants == {"s"}
    assert graph.value("s") == Value("s", "sparse(float32)", (2,))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{ y = Relu(a)  a = Relu(x) }", "reads 'a' before it is produced"),
        ("{ y = Relu(x)  y = Neg(x) }", "'y' is produced twice"),
        ("{ y = Relu(nowhere) }", "reads 'nowhere', which has no producer"),
        ("{ a = Relu(x) }", "output 'y' has no producer"),
        ("{ x = Relu(x) y = Relu(x) }", "'x' is produced twice"),
    ],
)
def test_broken_models_are_refused(body, message):
    with pytest.raises(GraphError, match=message):
        read_graph(model_of(f"g (float[1] x) => (float[1] y) {body}"))


def test_duplicate_input_names_are_refused():
    model = model_of("g (float[1] x) => (float[1] y) { y = Relu(x) }")
    model.graph.input.append(model.graph.input[0])
    with pytest.raises(GraphError, match="two graph inputs"):
        read_graph(model)
