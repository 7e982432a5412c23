"""Random ONNX graphs of many kinds of nodes: branches, several outputs, integers, groups that are one atom."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS, COLUMNS = 4, 8
_UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Softmax", "Floor", "Softplus", "HardSwish", "LayerNorm", "Gelu")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")


class GraphMaker:
    """Model under construction; every value is float32[4, 8], except internal ones of a recipe."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.values = np.random.default_rng(seed)
        self.nodes, self.constants, self.made = [], [], ["x"]
        for _ in range(self.random.randint(8, 40)):
            self.random.choice(RECIPES)(self)

    def node(self, op_type, inputs, outputs=1, **attributes):
        number = len(self.nodes)
        names = [f"v{number}_{output}" for output in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=f"n{number}", **attributes))
        return names if outputs > 1 else names[0]

    def constant(self, array):
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def numbers(self, *shape):
        return self.constant(self.values.standard_normal(shape).astype(np.float32))

    def one(self):
        """Return a random existing value, preferably a recent one."""
        return self.random.choice(self.made[-4:] if self.random.random() < 0.7 else self.made)

    def unary(self):
        op_type = self.random.choice(_UNARY)
        if op_type == "LayerNorm":
            made = self.node("LayerNormalization", [self.one(), self.numbers(COLUMNS), self.numbers(COLUMNS)])
        elif op_type == "Gelu":
            source = self.one()
            scaled = self.node("Div", [source, self.constant(np.float32(np.sqrt(2)))])
            more = self.node("Add", [self.node("Erf", [scaled]), self.constant(np.float32(1))])
            made = self.node("Mul", [self.node("Mul", [source, more]), self.constant(np.float32(0.5))])
        else:
            made = self.node(op_type, [self.one()])
        self.made.append(made)

    def binary(self):
        made = self.node(self.random.choice(_BINARY), [self.one(), self.one()])
        self.made.append(self.node("Tanh", [made]))  # keeps products of products bounded

    def product(self):
        self.made.append(self.node("MatMul", [self.one(), self.numbers(COLUMNS, COLUMNS)]))

    def halves(self):
        first, second = self.node("Split", [self.one()], 2, axis=1, num_outputs=2)
        self.made.append(self.node("Concat", [second, first], axis=1))

    def largest(self):
        count = self.constant(np.array([COLUMNS // 2], np.int64))
        best, places = self.node("TopK", [self.one(), count], 2, axis=1)
        wide = self.node("Cast", [places], to=TensorProto.FLOAT)
        self.made.append(self.node("Concat", [best, wide], axis=1))

    def chosen(self):
        condition = self.node("Greater", [self.one(), self.one()])
        self.made.append(self.node("Where", [condition, self.one(), self.one()]))

    def index(self):
        place = self.node("ArgMax", [self.one()], axis=1, keepdims=1)
        self.made.append(self.node("Add", [self.node("Cast", [place], to=TensorProto.FLOAT), self.one()]))

    def quantized(self):
        scale, zero = self.constant(np.float32(0.05)), self.constant(np.int8(3))
        given = self.node("QuantizeLinear", [self.one(), scale, zero])
        back = self.node("DequantizeLinear", [given, scale, zero])
        inner = self.node(self.random.choice(("Relu", "Sigmoid")), [back])
        made = self.node("QuantizeLinear", [inner, scale, zero])
        self.made.append(self.node("DequantizeLinear", [made, scale, zero]))

    def reduced(self):
        mean = self.node("ReduceMean", [self.one(), self.constant(np.array([1], np.int64))], keepdims=1)
        self.made.append(self.node("Sub", [self.one(), mean]))

    def model(self):
        """Return the model; its outputs are the values without consumers."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output if name not in read]
        outputs = [helper.make_empty_tensor_value_info(name) for name in made]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (ROWS, COLUMNS))
        graph = helper.make_graph(self.nodes, "random", [given], outputs, self.constants)
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
        return onnx.shape_inference.infer_shapes(model)


RECIPES = (
    *(GraphMaker.unary,) * 5,
    *(GraphMaker.binary,) * 3,
    GraphMaker.product,
    GraphMaker.halves,
    GraphMaker.largest,
    GraphMaker.chosen,
    GraphMaker.index,
    GraphMaker.quantized,
    GraphMaker.reduced,
)
