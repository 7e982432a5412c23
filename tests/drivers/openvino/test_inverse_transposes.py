"""Transposes after convolutions: the engine removes inverse pairs, or confuses two of them."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from nnadapter.drivers.openvino import read
from tests.every import for_every_value

BETWEEN = {
    "Relu": "b = Relu(a)",
    "Mul": "b = Mul(a, k)",
    "several": "e = Sigmoid(a)  f = Sub(k, e)  b = Sqrt(f)",
    "quantized": "e = QuantizeLinear(a, s, z)  b = DequantizeLinear(e, s, z)",
}
ORDERS = {"[0, 2, 1]": "4", "[0, 3, 2, 1]": "4, 4", "[0, 2, 3, 1]": "4, 3", "[0, 3, 1, 2, 4]": "3, 4, 2"}


def model(nodes, sizes, constants):
    graph = f"g (float[N, 2, {sizes}] x) => (float y) <{constants}> {{ {nodes} }}"
    parsed = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    parsed.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(parsed)


def check(parsed, sizes):
    oracle = onnxruntime.InferenceSession(parsed.SerializeToString())
    with InferenceSession(parsed, devices="openvino") as session:
        for rows in (4, 1, 3):
            feed = {"x": np.random.default_rng(rows).standard_normal((rows, 2, *sizes)).astype(np.float32)}
            result = session.run(None, feed)[0]
            np.testing.assert_allclose(result, oracle.run(None, feed)[0], rtol=1e-4, atol=0.051)
        assert {node.device for node in session.report().nodes} == {"openvino"}


@for_every_value(between=BETWEEN, order=ORDERS)
def test_inverse_orders_around_elementwise_ops(between, order):
    sizes, order_values = [int(number) for number in ORDERS[order].split(",")], eval(order)
    back = np.argsort(order_values).tolist()
    filters = f"float[4, 2{', 1' * len(sizes)}] w = {{0.3, -1, 2, 0.5, 1, 1, -0.7, 0.1}}"
    nodes = f"""c = Conv(x, w)  a = Transpose<perm = {order}>(c)  {BETWEEN[between]}
        y = Transpose<perm = {back}>(b)"""
    check(model(nodes, ORDERS[order], f"{filters}, float k = {{1.5}}, float s = {{0.05}}, int8 z = {{-1}}"), sizes)


def test_readers_of_removed_transposes_have_the_right_shape():
    nodes = """a = Transpose<perm = [0, 2, 3, 1]>(x)  b = Sigmoid(a)  c = Transpose<perm = [0, 3, 1, 2]>(b)
        d, e = Split<axis = 1>(c)  y = Mul(d, e)"""
    check(model(nodes, "5, 3", "float k = {1.5}"), (5, 3))


def test_only_inverse_orders_are_removed():
    def orders(nodes):
        constants = "float k = {1.5}, float[3] each = {1, 2, 3}"
        ops = read(model(nodes, "3", constants)).get_ops()
        return sum(op.get_type_name() == "Transpose" for op in ops)

    turned = "a = Transpose<perm = [0, 2, 1]>(x)"
    assert orders(f"{turned}  b = Mul(a, k)  y = Transpose<perm = [0, 2, 1]>(b)") == 0
    assert orders(f"{turned}  b = Mul(a, k)  y = Transpose<perm = [1, 0, 2]>(b)") == 2
    assert orders(f"{turned}  b = Softmax(a)  y = Transpose<perm = [0, 2, 1]>(b)") == 2
    assert orders(f"{turned}  b = Mul(a, a)  y = Transpose<perm = [0, 2, 1]>(b)") == 2


@for_every_value(
    order=("[0, 2, 3, 1]", "[1, 2, 3, 0]", "[2, 0, 3, 1]", "[0, 1, 3, 2]", "[3, 2, 1, 0]"), height=("H", "4"),
    following=("y = Relu(a)", "y = Transpose<perm = [1, 0, 3, 2]>(a)"),
)  # fmt: skip
def test_transposed_products_by_dequantized_1x1_filters(order, height, following):
    nodes = f"""d = DequantizeLinear(w, s, z)  c = Conv(x, d)  a = Transpose<perm = {order}>(c)  {following}"""
    filters = "int8[4, 2, 1, 1] w = {30, -100, 120, 50, 100, 100, -70, 10}"
    check(model(nodes, f"{height}, 3", f"{filters}, float s = {{0.01}}, int8 z = {{0}}"), (4, 3))
