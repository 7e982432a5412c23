"""Models of groups (DequantizeLinear, an op, QuantizeLinear), and their operands."""

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from nnadapter.converters import convert_graph
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.quantized_groups import convert_quantized_group, find_groups
from nnadapter.ir import verify
from nnadapter.ir.definition import by_definition
from nnadapter.onnx import read_node, since_version
from partition import Value
from tests.converters.quantized_nodes import integers
from tests.drivers.fake_npu.harness import run_model

OPSET = 20


class Group:
    """Model of one group; operands are (integers, scale, zero point, axis or None), or constant floats."""

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

    def values(self):
        infos = [*self.model.graph.input, *self.model.graph.value_info, *self.model.graph.output]
        return {
            info.name: Value(
                info.name,
                helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type).name,
                tuple(each.dim_value for each in info.type.tensor_type.shape.dim),
            )
            for info in infos
        }

    def read_nodes(self):
        return [read_node(node, node.name, since_version("", node.op_type, OPSET)) for node in self.nodes]

    def known(self):
        return {name: np.asarray(value) for name, value in self.constants.items()}

    def moved(self, position, op_type, *inputs, **attributes):
        """Insert a node between an operand's DequantizeLinear and the op."""
        old = f"x{position}d"
        node = next(node for node in self.nodes if old in node.input)
        node.input[list(node.input).index(old)] = f"{old}m"
        between = helper.make_node(op_type, [old, *inputs], [f"{old}m"], name="between", **attributes)
        self.nodes.insert(self.nodes.index(node), between)
        self.model = self.made()
        return self

    def converted_whole(self):
        """Convert the entire graph as a session does."""
        nodes = self.read_nodes()
        conversion = convert_graph(nodes, self.values(), self.known(), ["y"], groups=find_groups(nodes, ["y"]))
        assert all(conversion.verdicts)
        return conversion.model

    def converted(self):
        nodes = self.read_nodes()
        context = ConversionContext(self.values(), self.known())
        node = next(node for node in nodes if node.name == "op")
        sources = {node.outputs[0]: node for node in nodes if node.op_type == "DequantizeLinear"}
        context.begin(node)
        relu = next((each for each in nodes if each.op_type == "Relu" and each is not node), None)
        convert_quantized_group(context, node, sources, nodes[-1], relu)
        model = context.builder.finish([context.operand_of["y"]])
        verify(model)
        return model

    def expected(self, optimized):
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(self.model.SerializeToString(), options)
        return session.run(None, self.feeds)[0]


def check(group, optimized=False):
    """Compare the converted group with ONNX Runtime and return its operations."""
    model = group.converted()
    compare(group, model, optimized)
    return [operation.type for operation in model.operations]


def compare(group, model, optimized=False):
    inputs = [group.feeds[model.operands[index].name] for index in model.inputs]
    (result,) = run_model(model, inputs)
    expected = group.expected(optimized)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(by_definition(model, inputs)[0], expected)


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
