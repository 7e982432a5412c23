from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import nnadapter as nna
from nnadapter.candidates import prepare
from nnadapter.errors import InvalidModelError
from nnadapter.onnx.preparation import specialize
from tests.models import HEAD, numbers, parse, run_whole
from tests.partition.small_graphs import edges
from tests.work import growth


def specialized(text, **shapes):
    model = parse(text) if isinstance(text, str) else text
    return specialize(prepare(model), shapes)


def remaining(model, result):
    """Return the model that remains to run, with all folded values as initializers."""
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    del rest.graph.node[:]
    rest.graph.node.extend(model.graph.node[index] for index in result.positions)
    made = {name for node in rest.graph.node for name in node.output}
    given = {tensor.name for tensor in rest.graph.initializer} | {value.name for value in rest.graph.input}
    read = {name for node in rest.graph.node for name in node.input}
    rest.graph.initializer.extend(
        onnx.numpy_helper.from_array(result.constants[name], name) for name in sorted(read - made - given)
    )
    return rest


def remaining_types(result):
    return [node.op_type for node in result.graph.nodes]


@pytest.mark.slow
@given(edges(), st.data())
def test_nodes_not_needed_by_outputs_are_unused(predecessors, data):
    outputs = data.draw(st.sets(st.sampled_from(range(len(predecessors))), min_size=1)) if predecessors else {0}
    reads = [sorted(predecessor) for predecessor in predecessors] or [[]]
    nodes = [helper.make_node("Sum", [f"v{at}" for at in each] or ["x"], [f"v{own}"]) for own, each in enumerate(reads)]
    x, *made = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N"]) for n in ("x", *(f"v{at}" for at in outputs))
    )
    graph = helper.make_graph(nodes, "g", [x], made)
    prepared = prepare(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]))
    result = specialize(prepared, {"x": (3,)})
    needed = set(outputs)
    for at in reversed(range(len(reads))):
        needed.update(reads[at] if at in needed else ())
    assert set(result.positions) == needed and not result.folded
    assert len(result.unused) == len(reads) - len(needed)
    assert (result.graph.nodes is prepared.graph.nodes) == (len(needed) == len(reads))
    assert all(result.graph.value(node.outputs[0]).static_shape == (3,) for node in result.graph.nodes)


def test_shapes_are_propagated_from_inputs():
    result = specialized(
        f"{HEAD} g (float[N, 3] x) => (float[N, M] y) {{ a = Transpose(x) y = MatMul(x, a) }}", x=(5, 3)
    )
    assert result.graph.value("a").static_shape == (3, 5)
    assert result.graph.value("y").static_shape == (5, 5)
    assert result.graph.value("y").dtype == "float32"


def test_shapes_that_onnx_infers_wrongly_or_not_at_all():
    result = specialized(
        """<ir_version: 10, opset_import: ["": 20]>
        g (float[1, N, 1] x, float[N, 3, 2, 2] z) => (float[a, b, c, d] y, float[N, 3, 2, 2] w) {
            step = Constant<value_int = 5>()
            length = Constant<value_int = 16>()
            y = STFT(x, step, , length)
            w = MeanVarianceNormalization(z)
        }""",
        x=(1, 40, 1),
        z=(2, 3, 2, 2),
    )
    assert result.graph.value("y").static_shape == (1, 5, 9, 2)
    assert result.graph.value("w").static_shape == (2, 3, 2, 2)


def test_constant_subgraph_is_folded():
    text = f"""{HEAD} g (float[N, 2] x) => (float[N, 2] y) <float[2] w = {{1, 2}}> {{
        two = Constant<value_float = 2.0>()
        v = Mul(w, two)
        u = Neg(v)
        y = Add(x, u)
    }}"""
    prepared = prepare(parse(text))
    assert prepared.constants["u"].tolist() == [-2, -4]
    result = specialize(prepared, {"x": (1, 2)})
    assert remaining_types(result) == ["Add"]
    assert result.folded == ("Constant_0", "Mul_1", "Neg_2") and result.unused == ()
    assert [node.origins for node in result.graph.nodes] == [("Add_3",)]


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ("Gather (s, one)", [4]),
        ("Gather (s, both)", [[4, 6]]),
        ("Gather (s, first)", None),
        ("Gather (first, first)", [0]),
        ("Gather (end, zero)", [6]),
        ("Slice (s, one, three)", [4, 6]),
        ("Slice (s, one, three, zero)", [4, 6]),
        ("Slice (s, three, zero, zero, back)", [6, 4]),
        ("Slice (s, one, three, , two)", [4]),
        ("Slice (s, zero, one)", None),
        ("Slice (s, zero, three, zero, two)", None),
        ("Slice (s, computed, three)", [4, 6]),
        ("Slice (s, unknown, three)", None),
    ],
)
def test_static_sizes_of_a_dynamic_shape_are_folded(taken, expected):
    text = f"""{HEAD} g (float[N, 4, 6] x, int64[1] unknown) => (int64[a] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}},
         int64[1] back = {{-1}}, int64[1, 2] both = {{1, -1}}, int64[1] first = {{0}}> {{
        s = Shape (x)  end = Shape <start = 2> (x)
        computed = Sub (two, one)
        y = {taken}
    }}"""
    result = prepare(parse(text)).constants.get("y")
    assert (None if result is None else result.tolist()) == expected


def test_values_computed_from_static_sizes_are_folded():
    """PyTorch exports repeat_interleave as a range and a selection. Their sizes are unknown at first."""
    text = f"""{HEAD} g (float[N, 4] x) => (float[N, a] y)
        <int64 one = {{1}}, int64 zero = {{0}}, int64[1] axis = {{0}}> {{
        s = Shape (x)
        width = Gather (s, one)
        every = Range (zero, width, one)
        odd = Constant <value_ints = [0, 1, 0, 1]> ()
        chosen = Mul (every, odd)
        places = NonZero (chosen)
        flat = Squeeze (places, axis)
        y = Gather <axis = 1> (x, flat)
    }}"""
    prepared = prepare(parse(text))
    assert prepared.constants["flat"].tolist() == [1, 3]
    assert remaining_types(specialize(prepared, {"x": (3, 4)})) == ["Gather"]


def test_values_computed_from_static_shapes_are_folded_to_a_fixed_point():
    text = f"""{HEAD} g (float[N, 4, 6] x) => (float[A, B] y) {{
        s = Shape(x)
        zero = Constant<value_ints = [0]>()
        first = Gather<axis = 0>(s, zero)
        rest = Constant<value_ints = [-1]>()
        target = Concat<axis = 0>(first, rest)
        a = Reshape(x, target)
        t = Shape(a)
        one = Constant<value_ints = [1]>()
        two = Constant<value_ints = [2]>()
        last = Slice(t, one, two)
        half = Constant<value_float = 0.5>()
        wide = Expand(half, last)
        y = Mul(a, wide)
    }}"""
    result = specialized(text, x=(3, 4, 6))
    assert remaining_types(result) == ["Reshape", "Mul"]
    assert result.constants["target"].tolist() == [3, -1] and result.constants["wide"].shape == (24,)
    assert result.graph.value("y").static_shape == (3, 24)


def test_data_dependent_shapes_are_marked_transitively():
    text = f"""{HEAD} g (float[4] x) => (int64[1, K] i, float[K] y) {{
        i = NonZero(x)
        f = Squeeze(i)
        r = Cast<to = 1>(f)
        y = Relu(r)
        z = Neg(x)
    }}"""
    result = specialized(text, x=(4,))
    values = result.graph.values
    assert all(values[name].data_dependent for name in ("i", "f", "r", "y"))
    assert result.unused == ("Neg_4",)


def test_custom_operators_have_unknown_shapes_that_do_not_depend_on_data():
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Mystery", ["x"], ["a"], domain="acme"), helper.make_node("Relu", ["a"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)],
        ir_version=10,
    )
    result = specialized(model, x=(2,))
    assert remaining_types(result) == ["Mystery", "Relu"]
    assert not result.graph.value("a").data_dependent


def test_random_numbers_and_dequantized_weights_are_not_folded():
    text = f"""{HEAD} g (float[2] x) => (float[2] y) <uint8[2] q = {{1, 2}}, float s = {{0.5}}, uint8 z = {{0}}> {{
        r = RandomNormal<shape = [2]>()
        w = DequantizeLinear(q, s, z)
        a = Add(r, w)
        y = Add(a, x)
    }}"""
    assert remaining_types(specialized(text, x=(2,))) == ["RandomNormal", "DequantizeLinear", "Add", "Add"]


def test_folding_is_bounded():
    text = f"""{HEAD} g (float[1] x) => (float[A, B, C] y) {{
        s = Constant<value_ints = [4096, 4096, 64]>()
        big = ConstantOfShape(s)
        y = Add(x, big)
    }}"""
    assert remaining_types(specialized(text, x=(1,))) == ["ConstantOfShape", "Add"]


def test_onnxruntime_failures_fall_back_to_node_by_node_folding():
    node = helper.make_node("Mod", ["a", "b"], ["c"], fmod=1)
    graph = helper.make_graph(
        [
            node,
            helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["x", "d"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [
            helper.make_tensor("a", TensorProto.BFLOAT16, [2], [5.0, 7.0]),
            helper.make_tensor("b", TensorProto.BFLOAT16, [2], [3.0, 4.0]),
        ],
    )
    result = specialized(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), x=(2,))
    assert remaining_types(result) == ["Add"] and result.constants["d"].tolist() == [2, 3]


def test_unevaluable_nodes_remain():
    text = f"""{HEAD} g (float[N] x) => (float[N] y) <float[2] w = {{1, 2}}, int64 i = {{9}}> {{
        a = Gather(w, i)
        s = Shape(x)
        b = Expand(a, s)
        c = NonZero(x)
        y = Add(x, b)
    }}"""
    assert remaining_types(specialized(text, x=(3,))) == ["Gather", "Expand", "Add"]


def out_of_order(*nodes):
    graph = helper.make_graph(
        [helper.make_node(*node, name=node[2][0]) for node in nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_nodes_out_of_order_are_sorted_as_onnxruntime_does():
    model = out_of_order(
        ("Add", ["b", "c"], ["y"]), ("Relu", ["a"], ["c"]), ("Exp", ["x"], ["b"]), ("Neg", ["x"], ["a"])
    )
    assert [node.name for node in prepare(model).graph.nodes] == ["b", "a", "c", "y"]
    assert [node.name for node in model.graph.node] == ["y", "c", "b", "a"]
    x = np.array([-1.5, 2], np.float32)
    with nna.InferenceSession(model, devices="fake_npu") as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], run_whole(model, {"x": x})[0], rtol=1e-6)


def test_cyclic_nodes_are_refused():
    with pytest.raises(InvalidModelError, match="nodes are not in topological order"):
        prepare(out_of_order(("Add", ["x", "b"], ["a"]), ("Relu", ["a"], ["b"]), ("Neg", ["a"], ["y"])))


def test_control_flow_keeps_captured_values():
    text = f"""{HEAD} g (float[2] x, bool c) => (float[2] y) <float[2] w = {{1, 2}}> {{
        a = Neg(x)
        y = If (c) <
            then_branch = t () => (float[2] p) {{ p = Add(a, w) }},
            else_branch = e () => (float[2] q) {{ q = Identity(a) }}
        >
    }}"""
    result = specialized(text, x=(2,), c=())
    assert remaining_types(result) == ["Neg", "If"] and set(result.graph.nodes[1].captured) == {"a", "w"}


@given(st.integers(1, 5), st.integers(1, 5), st.lists(st.sampled_from(["Shape", "Neg", "Abs"]), max_size=4))
def test_prepared_graph_equals_the_model(rows, columns, ops):
    lines, last = [], "x"
    for index, op in enumerate(ops):
        if op == "Shape":
            lines.append(f"s{index} = Shape({last}) v{index} = Reshape({last}, s{index})")
        else:
            lines.append(f"v{index} = {op}({last})")
        last = f"v{index}"
    text = f"{HEAD} g (float[N, M] x) => (float[P, Q] y) {{ {' '.join(lines)} y = Relu({last}) }}"
    model = parse(text)
    result = specialized(text, x=(rows, columns))
    x = numbers(rows, columns)
    assert np.array_equal(run_whole(remaining(model, result), {"x": x})[0], run_whole(model, {"x": x})[0])
    assert "Shape" not in remaining_types(result)


def test_shapes_pass_through_ops_unknown_to_inference():
    text = f"""{HEAD.replace("17", "21")} g (float[N, 4, 2] x) => (float[N, 4, M] y) <float[4] s = {{1, 2, 3, 4}}> {{
        a = GroupNormalization<num_groups = 2>(x, s, s)
        y = Relu(a)
    }}"""
    assert specialized(text, x=(3, 4, 2)).graph.value("y").static_shape == (3, 4, 2)


def computed_shapes(levels):
    """Return a chain of reshapes to computed shapes that shape inference cannot follow."""
    lines = "".join(
        f"s{k} = Shape(v{k}) d{k} = Div(s{k}, two) m{k} = Mul(d{k}, two) v{k + 1} = Reshape(v{k}, m{k})\n"
        for k in range(levels)
    )
    return parse(
        f"{HEAD} g (float[N, 4] v0) => (float[P, Q] y) <int64[1] two = {{2}}> {{ {lines} y = Relu(v{levels}) }}"
    )


def test_a_chain_of_computed_shapes_is_resolved():
    result = specialized(computed_shapes(20), v0=(6, 4))
    assert remaining_types(result) == ["Reshape"] * 20 + ["Relu"]
    assert result.graph.value("y").static_shape == (6, 4) and result.unused == ()
    assert all(result.constants[f"m{k}"].tolist() == [6, 4] for k in range(20))
    model, feed = computed_shapes(20), {"v0": numbers(6, 4)}
    assert np.array_equal(run_whole(remaining(model, result), feed)[0], run_whole(model, feed)[0])


@pytest.mark.slow
def test_computed_shapes_take_work_linear_in_nodes():
    def work(levels):
        prepared = prepare(computed_shapes(levels))
        return lambda: specialize(prepared, {"v0": (6, 4)})

    assert growth(work, 50, 4) < 6


def test_chained_computed_shapes_are_resolved():
    level = """s{k} = Shape(v{k}) a{k} = Gather(s{k}, zero) b{k} = Gather(s{k}, one) p{k} = Mul(a{k}, two)
        q{k} = Div(b{k}, two) t{k} = Concat<axis = 0>(p{k}, q{k}) v{n} = Reshape(v{k}, t{k})\n"""
    lines = "".join(level.format(k=k, n=k + 1) for k in range(6))
    model = parse(
        f"{HEAD} g (float[N, M] v0) => (float[P, Q] y) <int64[1] two = {{2}}, int64[1] zero = {{0}}, "
        f"int64[1] one = {{1}}> {{ {lines} w = NonZero(t5) c = Cast<to = 1>(w) r = ReduceSum(c) y = Add(v6, r) }}"
    )
    result = specialized(model, v0=(1, 64))
    assert remaining_types(result) == ["Reshape"] * 6 + ["Add"]
    x = numbers(1, 64)
    y = run_whole(model, {"v0": x})[0]
    assert result.graph.value("y").static_shape == y.shape == (64, 1)
    assert np.array_equal(run_whole(remaining(model, result), {"v0": x})[0], y)


def test_computed_shapes_after_functions_and_sequences():
    model = parse(
        """<ir_version: 10, opset_import: ["" : 17, "own" : 1]> g (float[N, 4] v0) => (float[P, Q] y) <int64 i = {0}> {
            """
        + "".join(
            f"""s{k} = Shape(v{k}) h{k} = own.half(s{k}) f{k} = Shape(h{k}) e{k} = Mod(f{k}, f{k})
            g{k} = Add(s{k}, e{k}) r{k} = Reshape(v{k}, g{k}) o{k} = own.half(r{k})
            l{k} = SequenceConstruct(o{k}) v{k + 1} = SequenceAt(l{k}, i)
            """
            for k in range(5)
        )
        + """y = Relu(v5) }
        <domain: "own", opset_import: ["" : 17]> half (x) => (z) { z = Identity(x) }"""
    )
    result = specialized(model, v0=(2, 4))
    assert result.graph.value("y").static_shape == run_whole(model, {"v0": numbers(2, 4)})[0].shape


def test_initializer_with_wrong_dims_is_named():
    model = parse(f"{HEAD} g (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}> {{ y = Add(x, w) }}")
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.raw_data = b"1234"
    with pytest.raises(InvalidModelError, match=r"'w'.*\[2\]"):
        prepare(model)


def test_failing_and_unused_nodes_are_not_folded():
    text = f"""{HEAD} g (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}, int64 i = {{9}}> {{
        a = Gather(w, i)
        b = Neg(w)
        c = Neg(b)
        y = Add(x, b)
    }}"""
    result = specialized(text, x=(2,))
    assert result.folded == ("Neg_1",) and result.unused == ("Gather_0", "Neg_2")


def test_sequences_do_not_become_constants():
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Mod", ["a", "a"], ["b"], fmod=1),
                helper.make_node("SequenceConstruct", ["b", "b"], ["s"]),
                helper.make_node("SequenceAt", ["s", "at"], ["c"]),
            ],
            "g",
            [helper.make_tensor_value_info("at", TensorProto.INT64, [])],
            [helper.make_tensor_value_info("c", TensorProto.BFLOAT16, [2])],
            [helper.make_tensor("a", TensorProto.BFLOAT16, [2], [5.0, 7.0])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    result = specialized(model, at=())
    assert "s" not in result.constants and remaining_types(result)[-2:] == ["SequenceConstruct", "SequenceAt"]
