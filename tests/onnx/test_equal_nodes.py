"""Equal nodes, on which a device gives its verdict once."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

from nnadapter.onnx import Parts


def convolutions(*biases):
    channels = biases[0].size
    nodes = [helper.make_node("Conv", [f"x{at}", "w", f"b{at}"], [f"x{at + 1}"]) for at in range(len(biases))]
    first, last = (helper.make_tensor_value_info(f"x{at}", 1, [1, channels, 4, 4]) for at in (0, len(biases)))
    weight = np.ones((channels, channels, 1, 1), np.float32)
    arrays = {"w": weight, **{f"b{at}": bias for at, bias in enumerate(biases)}}
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return helper.make_model(helper.make_graph(nodes, "g", [first], [last], constants))


@pytest.mark.parametrize(("channels", "cases"), [(96, 1), (4, 2)])
def test_constants_except_weights_distinguish_nodes(channels, cases):
    model = convolutions(np.zeros(channels, np.float32), np.ones(channels, np.float32))
    assert len(Parts(model, 1 << 16).sized_cases(range(2))) == cases


def test_integer_constants_distinguish_nodes():
    shape = [helper.make_tensor_value_info("x", 1, [100])]
    nodes = [helper.make_node("Gather", ["x", name], [f"y{name}"]) for name in "ij"]
    results = [helper.make_tensor_value_info(f"y{name}", 1, [100]) for name in "ij"]
    indices = [numpy_helper.from_array(np.full(100, at), name) for at, name in enumerate("ij")]
    model = helper.make_model(helper.make_graph(nodes, "g", shape, results, indices))
    assert len(Parts(model).sized_cases(range(2))) == 2


@pytest.mark.parametrize(
    ("first", "second", "cases"),
    [
        (("n", "m"), ("n", "m"), 1),
        (("n", "m"), ("k", "n"), 1),
        (("n", "n"), ("m", "m"), 1),
        (("n", "n"), ("n", "m"), 2),
        (("n", "m"), ("n", "3"), 2),
    ],
)
def test_only_equality_of_symbolic_sizes_distinguishes_nodes(first, second, cases):
    sizes = [",".join(names) for names in (first, second)]
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{sizes[0]}] a, float[{sizes[1]}] b) => (float[{sizes[0]}] x, float[{sizes[1]}] y)
        {{ x = Relu(a) y = Relu(b) }}""")
    assert len(Parts(model).sized_cases(range(2))) == cases


@pytest.mark.parametrize(
    ("first", "second", "are_alike"),
    [
        ("8,8", "9,9", True),
        ("8,9", "9,8", True),
        ("8,8", "8,9", False),
        ("1,8", "8,8", False),
        ("3,8", "4,8", True),
        ("n,8", "n,9", True),
        ("n,8", "m,n", False),
    ],
)
def test_rough_cases_depend_on_which_sizes_are_equal(first, second, are_alike):
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{first}] a, float[{second}] b) => (float[{first}] x, float[{second}] y)
        {{ x = Relu(a) y = Relu(b) }}""")
    rough = {case.rough for case in Parts(model).sized_cases(range(2))}
    assert (len(rough) == 1) == are_alike


@pytest.mark.parametrize(("channels", "rough"), [(96, 1), (16, 1), (4, 2)])
def test_small_constants_distinguish_rough_cases(channels, rough):
    model = convolutions(np.zeros(channels, np.float32), np.ones(channels, np.float32))
    assert len({case.rough for case in Parts(model, 1 << 16).sized_cases(range(2))}) == rough


@pytest.mark.parametrize(("opset", "scales"), [(18, 2), (21, 4)])
def test_values_unknown_to_inference_have_the_types_of_inputs(opset, scales):
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : {opset}]> g (float[n, 4, h] x) => (y)
    <float[{scales}] s = {{{", ".join("1" * scales)}}}> {{
        a = Relu (x)  b = GroupNormalization <num_groups = 2> (a, s, s)  c = MeanVarianceNormalization (b)  y = Exp (c)
    }}""")
    parts = Parts(model)
    assert [(parts.value(name).dtype, parts.value(name).shape) for name in "abcy"] == [("float32", ("n", 4, "h"))] * 4
    assert [node.op_type for node in parts.part([1]).graph.node] == ["GroupNormalization"]
