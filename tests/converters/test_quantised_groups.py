"""Groups of DequantizeLinear, an op and QuantizeLinear as one operation, against ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.quantised_groups import convert_quantised_group
from nnadapter.converters.refusal import Refusal
from nnadapter.converters.registry import read_node, since_version
from nnadapter.ir.verify import verify
from partition.graph import Value
from tests.converters.quantised_nodes import integers
from tests.drivers.fake_npu.harness import run_model
from tests.ir_interpreter import interpret

OPSET = 20


class Group:
    """A model of one group; operands are (integers, scale, zero point, axis or None), or floats that are constant."""

    def __init__(self, op_type, operands, result, attributes=None, constants=(), relu=False):
        self.constants, self.feeds, self.nodes, names = {}, {}, [], []
        for position, operand in enumerate(operands):
            names.append(self.operand(position, operand, position in constants))
        self.constants |= {"ys": result[0], "yz": result[1]}
        self.nodes.append(helper.make_node(op_type, names, ["r"], name="op", **(attributes or {})))
        if relu:
            self.nodes.append(helper.make_node("Relu", ["r"], ["relu"]))
        self.nodes.append(helper.make_node("QuantizeLinear", ["relu" if relu else "r", "ys", "yz"], ["y"]))
        self.model = self.made()

    def operand(self, position, operand, constant):
        name = f"x{position}"
        if isinstance(operand, np.ndarray):
            self.constants[name] = operand
            return name
        value, scale, zero_point, axis = operand
        (self.constants if constant else self.feeds)[name] = value
        self.constants |= {f"{name}s": np.asarray(scale, np.float32), f"{name}z": np.asarray(zero_point, value.dtype)}
        along = {} if axis is None else {"axis": axis}
        self.nodes.append(helper.make_node("DequantizeLinear", [name, f"{name}s", f"{name}z"], [f"{name}d"], **along))
        return f"{name}d"

    def made(self):
        kind = helper.np_dtype_to_tensor_dtype
        given = [helper.make_tensor_value_info(name, kind(x.dtype), x.shape) for name, x in self.feeds.items()]
        known = [numpy_helper.from_array(np.asarray(value), name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", given, [helper.make_empty_tensor_value_info("y")], known)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)

    def converted(self):
        infos = [*self.model.graph.input, *self.model.graph.value_info, *self.model.graph.output]
        values = {
            info.name: Value(
                info.name,
                helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type).name,
                tuple(each.dim_value for each in info.type.tensor_type.shape.dim),
            )
            for info in infos
        }
        nodes = [read_node(node, node.name, since_version("", node.op_type, OPSET)) for node in self.nodes]
        context = ConversionContext(values, {name: np.asarray(value) for name, value in self.constants.items()})
        node = next(each for each in nodes if each.name == "op")
        sources = {each.outputs[0]: each for each in nodes if each.op_type == "DequantizeLinear"}
        context.begin(node)
        relu = next((each for each in nodes if each.op_type == "Relu" and each is not node), None)
        convert_quantised_group(context, node, sources, nodes[-1], relu)
        model = context.finish([context.operand_of["y"]])
        verify(model)
        return model

    def expected(self, optimised):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(self.model.SerializeToString(), options)
        return session.run(None, self.feeds)[0]


def check(group, optimised=False):
    model = group.converted()
    given = [group.feeds[model.operands[index].name] for index in model.inputs]
    (found,) = run_model(model, given)
    wanted = group.expected(optimised)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(interpret(model, given)[0], wanted)
    return [operation.type for operation in model.operations]


RESULT = (np.float32(0.05), np.uint8(110))


def picture(*shape, seed=0, scale=0.03, zero_point=120):
    return (integers(np.random.default_rng(seed), "uint8", *shape), scale, zero_point, None)


def weights(*shape, axis=None, seed=1):
    generator = np.random.default_rng(seed)
    count = shape[axis] if axis is not None else None
    scale = np.asarray(generator.uniform(0.002, 0.006, count), np.float32)
    points = 0 if axis is None else np.zeros(count, np.int8)
    return (integers(generator, "int8", *shape), scale, points, axis)


def bias(x, w, seed=2):
    scale = np.atleast_1d(np.float32(x[1]) * w[1]).astype(np.float32)
    count = w[0].shape[0]
    values = np.random.default_rng(seed).integers(-9000, 9000, count).astype(np.int32)
    if w[3] is None:
        return (values, scale[0], 0, None)
    return (values, scale, np.zeros(count, np.int32), 0)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("axis", [None, 0])
def test_convolutions(relu, axis):
    x, w = picture(1, 4, 7, 6), weights(6, 4, 3, 3, axis=axis)
    operands, attributes = [x, w, bias(x, w)], {"pads": [1, 1, 1, 1], "strides": [2, 1]}
    group = Group("Conv", operands, RESULT, attributes, constants=(1, 2), relu=relu)
    assert check(group, optimised=True) == ["STORAGE_CAST", "CONV_2D"]


@pytest.mark.parametrize("transposed", [0, 1])
def test_fully_connected_layers(transposed):
    x, w = picture(5, 30), weights(*((8, 30) if transposed else (30, 8)), axis=None)
    group = Group("Gemm", [x, w, bias(x, (np.empty(8), *w[1:]))], RESULT, {"transB": transposed}, constants=(1, 2))
    assert check(group, optimised=True) == ["STORAGE_CAST", "FULLY_CONNECTED"]


def test_products():
    group = Group("MatMul", [picture(2, 5, 30), weights(30, 8, axis=1)], RESULT, constants=(1,))
    assert check(group, optimised=True)[-1] == "MAT_MUL"
    group = Group("MatMul", [picture(2, 5, 9), picture(2, 9, 4, seed=3, scale=0.01, zero_point=7)], RESULT)
    assert check(group, optimised=True)[-1] == "MAT_MUL"


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Max", "Min"])
def test_operations_of_two(op_type):
    operands = [picture(2, 3, 8, 8), picture(3, 1, 8, seed=4, scale=0.011, zero_point=3)]
    assert check(Group(op_type, operands, RESULT))[-1] in ("ADD", "SUB", "MUL", "MAX", "MIN")


def test_an_addition_with_a_constant_and_an_activation():
    operands = [picture(2, 3, 8), picture(3, 1, seed=4, scale=0.011, zero_point=3)]
    assert check(Group("Add", operands, RESULT, constants=(1,), relu=True)) == ["STORAGE_CAST", "ADD"]


@pytest.mark.parametrize("op_type", ["Relu", "LeakyRelu", "HardSigmoid", "HardSwish", "Abs", "Neg"])
def test_functions(op_type):
    assert len(check(Group(op_type, [picture(4, 64)], RESULT))) == 2


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("Transpose", {"perm": [1, 0, 2, 3]}), ("MaxPool", {"kernel_shape": [2, 2]}), ("Flatten", {})],
)
def test_what_moves_keeps_its_scale(op_type, attributes):
    x = picture(2, 4, 6, 6)
    result = (np.float32(x[1]), np.uint8(x[2]))
    assert len(check(Group(op_type, [x], result, attributes))) == 2
    with pytest.raises(Refusal, match="it has no such"):
        Group(op_type, [x], RESULT, attributes).converted()


@pytest.mark.parametrize(
    ("op_type", "attributes"), [("GlobalAveragePool", {}), ("ReduceMean", {"keepdims": 0}), ("Softmax", {"axis": 1})]
)
def test_means_are_rounded_once(op_type, attributes):
    operation = check(Group(op_type, [picture(2, 4, 6, 6)], RESULT, attributes))[-1]
    assert operation == ("SOFTMAX" if op_type == "Softmax" else "REDUCE_MEAN")


def test_concat_of_different_scales():
    operands = [picture(2, 3), picture(4, 3, seed=5, scale=0.007, zero_point=9)]
    assert check(Group("Concat", operands, RESULT, {"axis": 0}))[-1] == "CONCAT"


def test_a_bias_of_another_scale_is_refused():
    x, w = picture(1, 4, 7, 6), weights(6, 4, 3, 3)
    values, scale, *rest = bias(x, w)
    group = Group("Conv", [x, w, (values, scale * 2, *rest)], RESULT, constants=(1, 2))
    with pytest.raises(Refusal, match="another scale"):
        group.converted()
    with pytest.raises(Refusal, match="not quantised as int32"):
        Group("Conv", [x, w, np.zeros(6, np.float32)], RESULT, constants=(1,)).converted()


def test_what_computes_nothing_with_reals_is_refused():
    with pytest.raises(Refusal, match="no quantised form"):
        Group("Floor", [picture(3)], RESULT).converted()
