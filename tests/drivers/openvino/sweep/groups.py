"""Random groups: an op with weights between DequantizeLinear and QuantizeLinear, as exporters write them.

Inputs are integral multiples of the step, so results are off by at most one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.drivers.openvino.sweep.attributes import Shape
from tests.drivers.openvino.sweep.shapes import narrowed

_BYTES = (np.uint8, np.int8)
_STEPS = (0.02, 0.05, 0.013, 0.1)
_SIZES = (1, 2, 4, 5, 8, 16, 17, 32)
_OPSETS = (20, 21, 22)


class Group:
    def __init__(self, op_type: str, seed: object) -> None:
        self.random = Random(f"{op_type} {seed}")
        self.op_type = op_type
        self.words: list[str] = []
        self.feed: dict[str, np.ndarray] = {}
        self._opset = self.random.choice(_OPSETS)
        self._numbers = np.random.default_rng(self.random.randrange(1 << 30))
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        if attributes and op_type != "DequantizeLinear":
            self.words.append(f"{op_type} {attributes}")
        return name

    def constant(self, value: object) -> str:
        self._constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(self._constants)}"))
        return self._constants[-1].name

    def normal(self, *shape: int) -> str:
        return self.constant(self._numbers.standard_normal(shape).astype(np.float32))

    def real(self, shape: Shape) -> str:
        self.words.append(f"real {list(shape)}")
        return self._input(self._numbers.standard_normal(shape).astype(np.float32))

    def activation(self, shape: Shape) -> str:
        """Add a dequantized activation, fed as integers or quantized in the model."""
        dtype, is_fed = self.random.choice(_BYTES), self.random.random() < 0.5
        integers, scale, point = self._integers(shape, dtype), self._scales(()), self._points((), dtype)
        self.words.append(f"{np.dtype(dtype)}{list(shape)} zero point {point} {'fed' if is_fed else ''}")
        parameters = self.constant(scale), self.constant(point)
        if is_fed:
            quantized = self._input(integers)
        else:
            reals = (integers.astype(np.float32) - point.astype(np.float32)) * scale
            quantized = self.node("QuantizeLinear", self._input(reals.astype(np.float32)), *parameters)
        return self.node("DequantizeLinear", quantized, *parameters)

    def weight(self, shape: Shape) -> str:
        """Add a dequantized constant with one scale, scales along an axis, or block scales."""
        random, dtype, axis = self.random, self.random.choice((np.int8, *_BYTES)), self.random.randrange(len(shape))
        kind = random.choice(("one", "axis", "axis", "blocks") if self._opset > 20 else ("one", "axis"))
        attributes: dict[str, int] = {} if kind == "one" else {"axis": axis}
        parameters: Shape = () if kind == "one" else (shape[axis],)
        if kind == "blocks":
            size = random.choice([candidate for candidate in (1, 2, 4) if shape[axis] % candidate == 0])
            attributes["block_size"] = size
            parameters = tuple(candidate // size if at == axis else candidate for at, candidate in enumerate(shape))
        points = self._points(parameters, dtype) if random.random() < 0.4 else np.zeros(parameters, dtype)
        self.words.append(f"constant {np.dtype(dtype)}{list(shape)} {attributes} zero points {points.tolist()}")
        inputs = map(self.constant, (self._integers(shape, dtype), self._scales(parameters), points))
        return self.node("DequantizeLinear", *inputs, **attributes)

    def bias(self, size: int) -> Sequence[str]:
        kind = self.random.choice(("none", "real", "one", "axis"))
        self.words.append(f"bias {kind}")
        if kind in ("none", "real"):
            return [] if kind == "none" else [self.normal(size)]
        integers = self._numbers.integers(-3000, 3000, size).astype(np.int32)
        scale = self._scales(() if kind == "one" else (size,)) / 20
        return [self.node("DequantizeLinear", self.constant(integers), self.constant(scale.astype(np.float32)), axis=0)]

    def model(self, output: str) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.feed.items()
        ]
        graph = helper.make_graph(self._nodes, "group", inputs, [onnx.ValueInfoProto(name=output)], self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)

    def quantized(self, output: str, reals: np.ndarray) -> tuple[str, float]:
        """Add QuantizeLinear, possibly also DequantizeLinear; return the output and step size."""
        dtype = self.random.choice(_BYTES)
        scale = np.float32((float(np.abs(reals).max()) or 1.0) / self.random.choice((40, 100, 128, 255)))
        point = self._points((), dtype)
        self.words.append(f"to {np.dtype(dtype)} {point}")
        parameters = self.constant(scale), self.constant(point)
        output = self.node("QuantizeLinear", output, *parameters)
        if self.random.random() < 0.5:
            return output, 1.0
        return self.node("DequantizeLinear", output, *parameters), float(scale)

    def _input(self, array: np.ndarray) -> str:
        name = f"x{len(self.feed)}"
        self.feed[name] = array
        return name

    def _integers(self, shape: Shape, dtype: type) -> np.ndarray:
        ends = np.iinfo(dtype)
        return self._numbers.integers(ends.min, ends.max, shape, dtype=dtype, endpoint=True)

    def _scales(self, shape: Shape) -> np.ndarray:
        return np.asarray(self._numbers.choice(_STEPS, shape)).astype(np.float32)

    def _points(self, shape: Shape, dtype: type) -> np.ndarray:
        ends = np.iinfo(dtype)
        return np.asarray(self._numbers.choice((0, ends.min, ends.max // 2 + 1, 3, ends.max), shape)).astype(dtype)


def _picture(group: Group) -> Shape:
    random = group.random
    return (random.choice((1, 2)), random.choice((1, 2, 3, 4, 8, 16, 17)), random.randint(3, 9), random.randint(3, 9))


def _convolution(group: Group) -> str:
    random, shape = group.random, _picture(group)
    parts, filters, size, pad = (
        random.choice((1, 1, shape[1])),
        random.choice((1, 2, 3, 8)),
        random.choice((1, 2, 3)),
        0,
    )
    is_transposed = group.op_type == "ConvTranspose"
    weights = (shape[1], filters) if is_transposed else (filters * parts, shape[1] // parts)
    pad = random.choice((0, 1)) if size > 1 else 0
    inputs = group.activation(shape), group.weight((*weights, size, size)), *group.bias(filters * parts)
    return group.node(group.op_type, *inputs, group=parts, strides=[random.choice((1, 2))] * 2, pads=[pad] * 4)


def _product(group: Group) -> str:
    random, (rows, inner, columns) = group.random, (group.random.choice(_SIZES) for _ in range(3))
    batch = random.choice(((), (2,), (2, 3)))
    x = (group.real if random.random() < 0.3 else group.activation)((*batch, rows, inner))
    kind = random.choice(("weight", "weight", "transposed", "batched", "both"))
    group.words.append(kind)
    if kind == "transposed":
        return group.node("MatMul", x, group.node("Transpose", group.weight((columns, inner)), perm=[1, 0]))
    if kind == "both":
        return group.node("MatMul", x, group.activation((*batch, inner, columns)))
    return group.node("MatMul", x, group.weight((*(batch if kind == "batched" else ()), inner, columns)))


def _left_product(group: Group) -> str:
    rows, inner, columns = (group.random.choice(_SIZES) for _ in range(3))
    return group.node("MatMul", group.weight((rows, inner)), group.activation((2, inner, columns)))


def _gemm(group: Group) -> str:
    random, (rows, inner, columns) = group.random, (group.random.choice(_SIZES) for _ in range(3))
    left, right = random.choice((0, 0, 1)), random.choice((0, 1))
    x = group.activation((inner, rows) if left else (rows, inner))
    inputs = x, group.weight((columns, inner) if right else (inner, columns)), *group.bias(columns)
    return group.node("Gemm", *inputs, transA=left, transB=right, alpha=random.choice((1.0, 0.5)))


def _binary(group: Group) -> str:
    random, shape = group.random, _picture(group)
    x, kind = group.activation(shape), random.choice(("other", "self", "weight", "number"))
    group.words.append(kind)
    if kind == "number" or group.op_type == "Div":
        return group.node(group.op_type, x, group.constant(np.float32(1.7)))
    other = {"other": lambda: group.activation(narrowed(random, shape)), "self": lambda: x}
    pair = [x, other.get(kind, lambda: group.weight((1, *shape[1:])))()]
    random.shuffle(pair)
    return group.node(group.op_type, *pair)


def _unary(**choices: Sequence[object]) -> Callable[[Group], str]:
    def written(group: Group) -> str:
        attributes = {name: group.random.choice(values) for name, values in choices.items()}
        return group.node(group.op_type, group.activation(_picture(group)), **attributes)

    return written


def _pooling(group: Group) -> str:
    random = group.random
    counts = {"count_include_pad": random.choice((0, 1))} if group.op_type == "AveragePool" else {}
    size, stride, pad = random.choice((2, 3)), random.choice((1, 2)), random.choice((0, 1))
    x = group.activation(_picture(group))
    return group.node(group.op_type, x, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[pad] * 4, **counts)


def _concat(group: Group) -> str:
    shape = _picture(group)
    return group.node("Concat", *[group.activation(shape) for _ in range(group.random.choice((2, 3)))], axis=1)


def _with_constants(*values: object, **choices: Sequence[object]) -> Callable[[Group], str]:
    def written(group: Group) -> str:
        attributes = {name: group.random.choice(options) for name, options in choices.items()}
        constants = ["" if value is None else group.constant(value) for value in values]
        return group.node(group.op_type, group.activation(_picture(group)), *constants, **attributes)

    return written


def _gather(group: Group) -> str:
    positions = group.constant(np.array([[0, 3], [2, 2]]))
    return group.node("Gather", group.weight((8, 6)), positions, axis=group.random.choice((0, 0, 1)))


def _per_channel(group: Group) -> str:
    shape = _picture(group)
    vectors = [np.linspace(0.5, 1.5, shape[1], dtype=np.float32)] * (4 if group.op_type == "BatchNormalization" else 2)
    return group.node(group.op_type, group.activation(shape), *map(group.constant, vectors))


def _layer_norm(group: Group) -> str:
    shape = _picture(group)
    return group.node("LayerNormalization", group.activation(shape), group.normal(shape[-1]), group.normal(shape[-1]))


GROUPS: dict[str, Callable[[Group], str]] = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "MatMul": lambda group: _product(group) if group.random.random() < 0.8 else _left_product(group),
    "Gemm": _gemm,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), _binary),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pooling),
    "Concat": _concat,
    "Gather": _gather,
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _per_channel),
    "LayerNormalization": _layer_norm,
    "Clip": _with_constants(np.float32(-0.4), np.float32(2.3)),
    "Pad": _with_constants(np.array([0, 0, 1, 1, 0, 0, 1, 0]), np.float32(0.5), mode=("constant",)),
    "Reshape": _with_constants(np.array([0, -1])),
    "Resize": _with_constants(None, np.float32([1, 1, 2, 2]), mode=("nearest", "linear")),
    "Slice": _with_constants(np.array([0, 1]), np.array([1, 3]), np.array([1, 2])),
    "Unsqueeze": _with_constants(np.array([1])),
    "ReduceMean": _with_constants(np.array([2, 3]), keepdims=(0, 1)),
    "Transpose": _unary(perm=([0, 2, 3, 1], [0, 1, 3, 2])),
    "LeakyRelu": _unary(alpha=(0.1, 0.3)),
    **dict.fromkeys(("Softmax", "Flatten"), _unary(axis=(1, -1))),
    **dict.fromkeys(
        (
            *("Relu", "Sigmoid", "Tanh", "HardSwish", "Gelu", "Erf", "Neg", "Abs", "Elu", "Exp", "Mish", "HardSigmoid"),
            *("Identity", "GlobalAveragePool", "GlobalMaxPool"),
        ),
        _unary(),
    ),
}
_ACTIVATED = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Add")


def group_of(op_type: str, seed: object) -> tuple[Group, str]:
    """Return a group without its final QuantizeLinear, and its output."""
    group = Group(op_type, seed)
    output = GROUPS[op_type](group)
    kind = group.random.choice(("", "", "Relu", "Clip", "Sigmoid")) if op_type in _ACTIVATED else ""
    bounds = [group.constant(np.float32(bound)) for bound in (0, 6)] if kind == "Clip" else []
    group.words.append(kind)
    return group, group.node(kind, output, *bounds) if kind else output
