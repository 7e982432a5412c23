"""Random graphs that write out norms, activations and attention from elementary operators.

Inference engines fuse such patterns, and a fusion that checks too little computes something else. So each detail that a
fusion may overlook is drawn: operand order, keepdims, axes, rank and size of constants, how a square or a reciprocal is
written, operators that change nothing, several consumers, and intermediate values as outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = range(13, 23)
_TYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64}


@dataclass(frozen=True)
class Value:
    """A tensor of a graph: its name and its concrete shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, eq=False)
class Composition:
    """A generated model, one set of inputs for it, and the names of the fragments in it."""

    seed: int
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    fragments: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"seed {self.seed} ({', '.join(self.fragments)})\n{onnx.printer.to_text(self.model)}"


def generate(seed: int, *, dynamic: bool | None = None, only: Sequence[str] = ()) -> Composition:
    """Return the composition of a seed.

    Args:
        seed: Decides everything.
        dynamic: Whether inputs have symbolic dimensions; drawn if None.
        only: Names of the fragments to draw from; all if empty.
    """
    for attempt in range(100):
        random = Random(f"{seed}/{attempt}")
        try:
            return _draw(seed, random, dynamic, [name for name in FRAGMENTS if not only or name in only])
        except ValueError:  # shapes that do not broadcast: draw again
            continue
    raise AssertionError(f"no composition for seed {seed}")


def _draw(seed: int, random: Random, dynamic: bool | None, names: Sequence[str]) -> Composition:
    fragments = random.choices(names, k=random.choice((1, 1, 1, 2, 2, 3)))
    types = {TYPES_OF_FRAGMENTS[name] for name in fragments if name in TYPES_OF_FRAGMENTS}
    if len(types) > 1:
        raise ValueError("fragments of different types")
    graph = Graph(random, *types)
    value = graph.input(_shape(random))
    for name in fragments:
        value = FRAGMENTS[name](graph, graph.unchanged(value, 0.15))
        if math.prod(value.shape) > 20000:
            raise ValueError("too large")
    value = graph.unchanged(value, 0.1)
    if value.rank and random.random() < 0.3:
        op_type = random.choice(("ReduceSum", "ReduceMax", "ReduceMean"))
        value = graph.reduce(op_type, value, (random.randrange(value.rank),))
    return graph.finish(seed, value, tuple(fragments), dynamic=random.random() < 0.25 if dynamic is None else dynamic)


def _shape(random: Random) -> tuple[int, ...]:
    rank = random.choice((1, 2, 2, 3, 3, 3, 4, 4))
    if random.random() < 0.35:  # square: broadcasting hides a wrong axis
        return (random.choice((2, 3, 4)),) * rank
    return tuple(random.choice((1, 1, 2, 3, 4, 5, 8)) for _ in range(rank))


class Graph:
    """A graph under construction, which knows the shape of every value."""

    def __init__(self, random: Random, data_type: int | None = None) -> None:
        self.random = random
        self.opset = random.choice(OPSETS)
        drawn = random.choices((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE), (90, 5, 5))[0]
        self.type = drawn if data_type is None else data_type
        self.dtype = _TYPES[self.type]
        self.numbers = np.random.default_rng(random.getrandbits(32))
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.outputs: list[Value] = []
        """Values that are outputs in any case."""
        self.feeds: dict[str, np.ndarray] = {}
        self.as_nodes = random.random() < 0.3

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def input(self, shape: Sequence[int], *, positive: bool = False) -> Value:
        """Add an input and draw its contents."""
        value = Value(f"x{len(self.inputs)}", tuple(shape))
        array = self.numbers.standard_normal(value.shape) * self.random.choice((0.3, 1, 2))
        self.feeds[value.name] = np.asarray(np.abs(array) + 0.5 if positive else array, self.dtype)
        self.inputs.append(value)
        return value

    def constant(self, contents: Any, dtype: Any = None) -> Value:
        """Add a constant: an initializer, or a node."""
        array = np.asarray(contents, self.dtype if dtype is None else dtype)
        name = f"c{len(self.initializers) + len(self.nodes)}"
        tensor = numpy_helper.from_array(array, name)
        if self.as_nodes:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        return Value(name, array.shape)

    def number(self, number: float, like: Value) -> Value:
        """Add a constant that holds one number, of a drawn rank and perhaps of several equal elements."""
        form = self.random.random()
        if form < 0.55:
            shape: tuple[int, ...] = ()
        elif form < 0.7:
            shape = (1,)
        elif form < 0.8:
            shape = (1,) * self.random.randint(0, like.rank + 1)
        elif form < 0.9:
            shape = like.shape[self.random.randint(0, like.rank) :]
        else:
            shape = (self.random.choice((1, 2, 3)), *(1 for _ in like.shape))
        return self.constant(np.full(shape, number))

    def parameter(self, like: Value, *, positive: bool = False, near: float = 0.0) -> Value:
        """Add a scale or a bias, constant or computed, whose shape broadcasts with a value or makes it larger."""
        start = self.random.randint(0, like.rank)
        shape = [size if self.chance(0.7) else 1 for size in like.shape[start:]]
        if self.chance(0.5) and like.rank:
            shape = [like.shape[-1]]
        if self.chance(0.08):
            shape = [self.random.choice((2, 3)) if size == 1 else size for size in shape]
        if self.chance(0.06) and like.rank < 4:
            shape = [self.random.choice((1, 2)), *([1] * (like.rank - len(shape))), *shape]
        array = self.numbers.standard_normal(shape) * 0.5 + near
        if positive:
            array = np.abs(array) + 0.3
        if self.chance(0.15):
            return self.input(shape, positive=positive)
        return self.constant(array)

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        shape: Sequence[int],
        *,
        floating: bool = True,
        **attributes: Any,
    ) -> Value:
        """Add a node with one output, which may become an output of the model if it is floating-point."""
        value = Value(f"v{len(self.nodes)}", tuple(shape))
        names = [each.name if each else "" for each in inputs]
        self.nodes.append(helper.make_node(op_type, names, [value.name], **attributes))
        if floating:
            self.values.append(value)
        return value

    def unary(self, op_type: str, value: Value, **attributes: Any) -> Value:
        return self.node(op_type, [value], value.shape, **attributes)

    def binary(self, op_type: str, left: Value, right: Value) -> Value:
        """Add an elementwise node; operands of a commutative one change places by chance."""
        if op_type in ("Add", "Mul", "Max", "Min") and self.chance(0.4):
            left, right = right, left
        return self.node(op_type, [left, right], np.broadcast_shapes(left.shape, right.shape))

    def reduce(self, op_type: str, value: Value, axes: Sequence[int], keepdims: int | None = None) -> Value:
        """Add a reduction."""
        axes = sorted({axis % value.rank for axis in axes}) if value.rank else []
        if keepdims is None:
            rest = [size for at, size in enumerate(value.shape) if at not in axes]
            keepdims = int(self.chance(0.5) or not all(_broadcast(rest, value.shape)))
        shape = [1 if at in axes else size for at, size in enumerate(value.shape) if keepdims or at not in axes]
        written = [axis - value.rank if self.chance(0.6) else axis for axis in axes]
        attributes: dict[str, Any] = {} if keepdims and self.chance(0.5) else {"keepdims": keepdims}
        if not written:
            return self.node(
                op_type,
                [value],
                shape,
                **attributes,
                **({"noop_with_empty_axes": 1} if op_type == "ReduceSum" or self.opset >= 18 else {}),
            )
        if op_type == "ReduceSum" or self.opset >= 18:
            return self.node(op_type, [value, self.constant(written, np.int64)], shape, **attributes)
        return self.node(op_type, [value], shape, axes=written, **attributes)

    def matmul(self, left: Value, right: Value) -> Value:
        if left.shape[-1] != right.shape[-2]:
            raise ValueError("inner sizes differ")
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        return self.node("MatMul", [left, right], (*batch, left.shape[-2], right.shape[-1]))

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        if len(perm) != value.rank:
            raise ValueError("a permutation of another rank")
        return self.node("Transpose", [value], [value.shape[axis] for axis in perm], perm=list(perm))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        return self.node("Reshape", [value, self.constant(list(shape), np.int64)], shape)

    def axes(self, value: Value) -> tuple[int, ...]:
        """Draw axes to normalize over: mostly the last, sometimes others or several."""
        if not value.rank:
            return ()
        form = self.random.random()
        if form < 0.6:
            return (value.rank - 1,)
        if form < 0.75:
            return (self.random.randrange(value.rank),)
        if form < 0.9:
            return tuple(range(max(0, value.rank - 2), value.rank))
        return tuple(sorted(self.random.sample(range(value.rank), self.random.randint(1, value.rank))))

    def unchanged(self, value: Value, probability: float = 0.06) -> Value:
        """Pass a value by chance through operators that do not change it."""
        if not self.chance(probability):
            return value
        one = self.constant(np.ones((1,) * self.random.randint(0, min(1, value.rank))))
        forms: list[Callable[[], Value]] = [
            lambda: self.unary("Identity", value),
            lambda: self.cast(value),
            lambda: self.unary("Dropout", value),
            lambda: self.binary("Mul", value, one),
            lambda: self.node("Div", [value, one], value.shape),
            lambda: self.binary("Add", value, self.constant(np.zeros(one.shape))),
            lambda: self.node("Sub", [value, self.constant(np.zeros(one.shape))], value.shape),
            lambda: self.unary("Neg", self.unary("Neg", value)),
            lambda: self.node("Pow", [value, one], value.shape),
            lambda: self.reshape(value, value.shape),
            lambda: self.transpose(value, range(value.rank)),
            lambda: self.node("Expand", [value, self.constant(value.shape, np.int64)], value.shape),
            lambda: self.binary(
                "Mul", value, self.node("Div", [one, self.input((1,) * len(one.shape), positive=True)], one.shape)
            ),
            lambda: self.node("Concat", [value], value.shape, axis=0) if value.rank else value,
            lambda: self._unsqueezed(value),
            lambda: self._twice_transposed(value),
        ]
        return self.random.choice(forms)()

    def cast(self, value: Value) -> Value:
        """Cast a value to the type that it has; the result is often an output, and perhaps has no other reader."""
        result = self.unary("Cast", value, to=self.type)
        if self.chance(0.5):
            return result
        self.outputs.append(result)
        return self.random.choice((result, value))

    def square(self, value: Value, rank: int) -> Value:
        """Return a value all of whose dimensions are equal, made of an input and the mean of a value."""
        mean = self.reduce("ReduceMean", value, range(value.rank), keepdims=0) if value.rank else value
        return self.binary("Add", self.input((self.random.choice((2, 3, 4)),) * rank), mean)

    def _unsqueezed(self, value: Value) -> Value:
        at = self.random.randint(0, value.rank)
        axis = self.constant([at], np.int64)
        larger = self.node("Unsqueeze", [value, axis], (*value.shape[:at], 1, *value.shape[at:]))
        return self.node("Squeeze", [larger, axis], value.shape)

    def _twice_transposed(self, value: Value) -> Value:
        perm = list(range(value.rank))
        self.random.shuffle(perm)
        return self.transpose(self.transpose(value, perm), np.argsort(perm).tolist())

    def finish(self, seed: int, value: Value, fragments: tuple[str, ...], *, dynamic: bool) -> Composition:
        """Return the composition whose outputs are a value and, by chance, intermediate values."""
        always = [each for each in self.outputs if each.name != value.name]
        names = {value.name, *(each.name for each in always)}
        others = [each for each in self.values if each.name not in names]
        count = min(len(others), self.random.choice((0, 0, 0, 1, 1, 2, 3)))
        outputs = [value, *always, *self.random.sample(others, count)]
        if value.name in self.feeds or not any(value.name in node.output for node in self.nodes):
            outputs[0] = self.unary("Identity", value)
        self.random.shuffle(outputs)
        named = [self._info(each, dynamic, known=True) for each in self.inputs]
        infos = [self._info(each, dynamic, known=not dynamic) for each in outputs]
        graph = helper.make_graph(self.nodes, "composition", named, infos, self.initializers)
        opset = helper.make_opsetid("", self.opset)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        return Composition(seed, model, self.feeds, fragments)

    def _info(self, value: Value, dynamic: bool, *, known: bool) -> onnx.ValueInfoProto:
        if dynamic and not known:
            return helper.make_tensor_value_info(value.name, self.type, [None] * value.rank)
        if not dynamic:
            return helper.make_tensor_value_info(value.name, self.type, value.shape)
        dims = [f"{value.name}_{at}" if self.chance(0.6) else size for at, size in enumerate(value.shape)]
        return helper.make_tensor_value_info(value.name, self.type, dims)


# Norms


def norm(graph: Graph, x: Value) -> Value:
    """Write layer, RMS, instance or group norm, or something that looks like one."""
    axes = graph.axes(x)
    centered = x
    if graph.chance(0.6):
        mean = graph.unchanged(graph.reduce("ReduceMean", x, axes))
        left, right = (x, mean) if graph.chance(0.7) else (mean, x)
        centered = graph.unchanged(graph.binary("Sub", left, right))
    squared_from = centered if graph.chance(0.85) else x
    variance = graph.reduce(
        graph.random.choice(("ReduceMean",) * 5 + ("ReduceSum",)), square(graph, squared_from), axes
    )
    if graph.chance(0.1):
        variance = graph.reduce(
            "ReduceMean", square(graph, graph.binary("Sub", x, graph.reduce("ReduceMean", x, axes))), axes
        )
    epsilon = graph.number(graph.random.choice((1e-5, 1e-3, 0.1, 1.0)), variance)
    if graph.chance(0.1):
        epsilon = graph.constant(graph.numbers.uniform(0.01, 1, x.shape[-1:]))
    variance = graph.unchanged(graph.binary("Add" if graph.chance(0.95) else "Max", variance, epsilon))
    divided = divide_by_root(graph, centered if graph.chance(0.92) else x, variance)
    if graph.chance(0.8):
        divided = graph.binary("Mul", graph.unchanged(divided), graph.parameter(divided, near=1))
    if graph.chance(0.6):
        divided = graph.binary("Add" if graph.chance(0.9) else "Sub", divided, graph.parameter(divided))
    return divided


def square(graph: Graph, x: Value) -> Value:
    """Write the square of a value."""
    form = graph.random.random()
    if form < 0.5:
        return graph.node("Pow", [x, two := graph.number(2, x)], np.broadcast_shapes(x.shape, two.shape))
    if form < 0.58:
        return graph.node("Pow", [x, graph.constant(2, graph.random.choice((np.int64, np.int32)))], x.shape)
    if form < 0.65:
        return graph.binary("Mul", x, graph.unary("Identity", x))
    return graph.node("Mul", [x, x], x.shape)


def divide_by_root(graph: Graph, x: Value, variance: Value) -> Value:
    """Write x / sqrt(variance)."""
    form = graph.random.random()
    if form < 0.55:
        root = graph.unchanged(graph.unary("Sqrt", variance))
        return graph.node("Div", [x, root], np.broadcast_shapes(x.shape, root.shape))
    if form < 0.7:
        return graph.binary("Mul", x, graph.unary("Reciprocal", graph.unary("Sqrt", variance)))
    if form < 0.85:
        root = graph.unary("Sqrt", variance)
        one = graph.number(graph.random.choice((1, 1, 1, 2)), root)
        inverse = graph.node("Div", [one, root], np.broadcast_shapes(one.shape, root.shape))
        return graph.binary("Mul", x, inverse)
    power = graph.number(-0.5 if graph.chance(0.5) else 0.5, variance)
    root = graph.node("Pow", [variance, power], np.broadcast_shapes(variance.shape, power.shape))
    return (
        graph.node("Div", [x, root], np.broadcast_shapes(x.shape, root.shape))
        if graph.chance(0.5)
        else graph.binary("Mul", x, root)
    )


def length_norm(graph: Graph, x: Value) -> Value:
    """Write a division by the length of a vector."""
    axes = graph.axes(x)
    if graph.chance(0.4):
        length = graph.reduce(graph.random.choice(("ReduceL2", "ReduceL2", "ReduceL1")), x, axes)
    else:
        total = graph.reduce("ReduceSum", square(graph, x), axes)
        if graph.chance(0.6):
            total = graph.binary(
                graph.random.choice(("Add", "Max")), total, graph.number(graph.random.choice((1e-3, 0.1)), total)
            )
        else:
            total = graph.binary("Add", total, graph.constant(0.01))
        length = graph.unary("Sqrt", total)
    form = graph.random.random()
    if form < 0.4:
        length = graph.node("Clip", [length, graph.constant(0.05)], length.shape)
    elif form < 0.7:
        length = graph.binary("Max", length, graph.number(0.05, length))
    else:
        length = graph.binary("Add", length, graph.number(0.05, length))
    if graph.chance(0.2):
        length = (
            graph.node("Expand", [length, graph.constant(x.shape, np.int64)], x.shape)
            if np.broadcast_shapes(length.shape, x.shape) == x.shape
            else length
        )
    if graph.chance(0.25):
        return graph.binary("Mul", x, graph.unary("Reciprocal", length))
    return graph.node("Div", [x, length], np.broadcast_shapes(x.shape, length.shape))


def softmax(graph: Graph, x: Value, *, is_masked: bool = False) -> Value:
    """Write Softmax or LogSoftmax out; of masked values, less the largest, so that no sum is 0."""
    axes = graph.axes(x)
    if graph.chance(0.6) or is_masked:
        largest = graph.reduce("ReduceMax", x, axes, keepdims=1 if is_masked else None)
        x = graph.node("Sub", [x, largest], np.broadcast_shapes(x.shape, largest.shape))
    powers = graph.unchanged(graph.unary("Exp", x))
    total = graph.reduce("ReduceSum", powers, axes)
    if graph.chance(0.2):
        total = graph.binary("Add", total, graph.number(0.1, total))
    if graph.chance(0.2):
        log = graph.unary("Log", total)
        return graph.node("Sub", [x, log], np.broadcast_shapes(x.shape, log.shape))
    return graph.node("Div", [powers, total], np.broadcast_shapes(powers.shape, total.shape))


# Activations


def swish(graph: Graph, x: Value) -> Value:
    """Write x * sigmoid(k * x)."""
    inner = x
    if graph.chance(0.6):
        inner = graph.binary("Mul", x, graph.number(graph.random.choice((1.0, 1.702, 0.5, -1)), x))
    gate = sigmoid(graph, graph.unchanged(inner))
    other = x if graph.chance(0.85) else graph.parameter(x)
    return graph.binary("Mul", other, graph.unchanged(gate))


def sigmoid(graph: Graph, x: Value) -> Value:
    """Write the logistic function."""
    if graph.chance(0.7):
        return graph.unary("Sigmoid", x)
    power = graph.unary("Exp", graph.unary("Neg", x))
    one = graph.number(1, power)
    total = graph.binary("Add", power, one)
    if graph.chance(0.5):
        return graph.unary("Reciprocal", total)
    return graph.node("Div", [one, total], np.broadcast_shapes(one.shape, total.shape))


def gelu(graph: Graph, x: Value) -> Value:
    """Write Gelu by Erf, factors in any order."""
    if graph.chance(0.3):
        x = graph.binary("Add", x, graph.parameter(x))
    root = graph.number(math.sqrt(2) if graph.chance(0.9) else 1.5, x)
    if graph.chance(0.7):
        inner = graph.node("Div", [x, root], np.broadcast_shapes(x.shape, root.shape))
    else:
        inner = graph.binary("Mul", x, graph.number(1 / math.sqrt(2), x))
    return _times_half(
        graph, x, graph.binary("Add", graph.unchanged(graph.unary("Erf", inner)), graph.number(1, inner))
    )


def fast_gelu(graph: Graph, x: Value) -> Value:
    """Write Gelu by Tanh, factors in any order."""
    if graph.chance(0.3):
        x = graph.binary("Add", x, graph.parameter(x))
    if graph.chance(0.6):
        three = graph.number(3, x)
        cube = graph.node("Pow", [x, three], np.broadcast_shapes(x.shape, three.shape))
    else:
        cube = graph.binary("Mul", x, graph.node("Mul", [x, x], x.shape))
    factor = graph.number(0.044715 if graph.chance(0.85) else 0.1, x)
    if graph.chance(0.75):
        total = graph.binary("Add", x, graph.binary("Mul", cube, factor))
        inner = graph.binary("Mul", total, graph.number(math.sqrt(2 / math.pi), total))
    else:
        inside = graph.binary(
            "Add", graph.binary("Mul", graph.node("Mul", [x, x], x.shape), factor), graph.number(1, x)
        )
        inner = graph.binary("Mul", graph.binary("Mul", x, graph.number(math.sqrt(2 / math.pi), x)), inside)
    return _times_half(
        graph, x, graph.binary("Add", graph.unchanged(graph.unary("Tanh", inner)), graph.number(1, inner))
    )


def _times_half(graph: Graph, x: Value, gate: Value) -> Value:
    half = graph.number(0.5 if graph.chance(0.9) else 0.7, x)
    form = graph.random.random()
    if form < 0.3:
        return graph.binary("Mul", graph.binary("Mul", x, gate), half)
    if form < 0.6:
        return graph.binary("Mul", graph.binary("Mul", x, half), gate)
    if form < 0.9:
        return graph.binary("Mul", x, graph.binary("Mul", gate, half))
    two = graph.number(2, gate)
    return graph.binary("Mul", x, graph.node("Div", [gate, two], np.broadcast_shapes(gate.shape, two.shape)))


def leaky_relu(graph: Graph, x: Value) -> Value:
    """Write LeakyRelu, PRelu or a clipped Relu by Max, Min, Mul or Where."""
    slope = graph.number(graph.random.choice((0.1, 0.01, 0.5, 1.5)), x) if graph.chance(0.6) else graph.parameter(x)
    form = graph.random.random()
    if form < 0.4:
        return graph.binary(graph.random.choice(("Max", "Max", "Min")), x, graph.binary("Mul", x, slope))
    if form < 0.55:
        zero = graph.number(0, x)
        negative = graph.binary("Min", x, zero)
        return graph.binary("Add", graph.unary("Relu", x), graph.binary("Mul", negative, slope))
    if form < 0.7:
        zero = graph.number(0, x)
        scaled = graph.binary("Mul", x, slope)
        above = graph.node("Greater", [x, zero], np.broadcast_shapes(x.shape, zero.shape), floating=False)
        return graph.node("Where", [above, x, scaled], np.broadcast_shapes(above.shape, x.shape, scaled.shape))
    if form < 0.85:
        inverse = graph.unary("Relu", graph.unary("Neg", x))
        return graph.node(
            "Sub",
            [graph.unary("Relu", x), other := graph.binary("Mul", inverse, slope)],
            np.broadcast_shapes(x.shape, other.shape),
        )
    return graph.binary("Min", graph.binary("Max", x, graph.number(0, x)), graph.number(6, x))


def hard_swish(graph: Graph, x: Value) -> Value:
    """Write HardSwish or HardSigmoid out."""
    shifted = graph.unchanged(graph.binary("Add", x, graph.number(3, x)))
    form = graph.random.random()
    if form < 0.45:
        clipped = graph.node("Clip", [shifted, graph.constant(0), graph.constant(6)], shifted.shape)
    elif form < 0.75:
        clipped = graph.binary(
            "Min",
            graph.unary("Relu", shifted) if graph.chance(0.5) else graph.binary("Max", shifted, graph.number(0, x)),
            graph.number(6, x),
        )
    else:
        clipped = graph.binary(
            "Mul", graph.unary("HardSigmoid", x, alpha=graph.random.choice((1 / 6, 0.2)), beta=0.5), graph.number(6, x)
        )
    six = graph.number(6 if graph.chance(0.9) else 5, x)
    form = graph.random.random()
    if form < 0.25:
        return graph.node("Div", [clipped, six], np.broadcast_shapes(clipped.shape, six.shape))
    if form < 0.5:
        product = graph.binary("Mul", x, clipped)
        return graph.node("Div", [product, six], np.broadcast_shapes(product.shape, six.shape))
    if form < 0.75:
        return graph.binary("Mul", x, graph.node("Div", [clipped, six], np.broadcast_shapes(clipped.shape, six.shape)))
    return graph.binary("Mul", graph.binary("Mul", x, clipped), graph.number(1 / 6, x))


def mish(graph: Graph, x: Value) -> Value:
    """Write Mish or Softplus out."""
    if graph.chance(0.5):
        soft = graph.unary("Softplus", x)
    else:
        soft = graph.unary("Log", graph.binary("Add", graph.unary("Exp", x), graph.number(1, x)))
    if graph.chance(0.2):
        return soft
    return graph.binary(
        "Mul", x if graph.chance(0.85) else graph.parameter(x), graph.unary("Tanh", graph.unchanged(soft))
    )


# Attention, products and convolutions


def attention(graph: Graph, x: Value) -> Value:
    """Write scaled dot-product attention, with scales, masks and gates in many places."""
    while x.rank < 2:
        x = graph.reshape(x, (*x.shape, 1))
    if graph.chance(0.4) and x.rank in (2, 3) and x.shape[-1] % 2 == 0:
        heads = 2
        x = graph.reshape(x, (*x.shape[:-1], heads, x.shape[-1] // heads))
        perm = list(range(x.rank))
        perm[-2], perm[-3] = perm[-3], perm[-2]
        x = graph.transpose(x, perm)
    size = x.shape[-1]

    def project() -> Value:
        if graph.chance(0.5):
            return x
        value = graph.matmul(x, graph.constant(graph.numbers.standard_normal((size, size)) * 0.5))
        return graph.binary("Add", value, graph.parameter(value)) if graph.chance(0.4) else value

    query, key, values = project(), project(), project()
    swapped = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    key = graph.transpose(key, swapped)
    factor = 1 / math.sqrt(size)
    place = graph.random.choice(("query", "key", "both", "scores", "scores", "none"))
    if place in ("query", "both"):
        query = _scaled(graph, query, factor if place == "query" else math.sqrt(factor))
    if place in ("key", "both"):
        key = _scaled(graph, key, factor if place == "key" else math.sqrt(factor))
    scores = graph.matmul(query, key)
    if place == "scores":
        scores = _scaled(graph, scores, factor)
    scores = graph.unchanged(scores)
    if graph.chance(0.5):
        mask = (
            graph.input(scores.shape[graph.random.randint(0, scores.rank) :])
            if graph.chance(0.6)
            else graph.parameter(scores)
        )
        scores = graph.binary("Add", scores, mask)
    axis = -1 if graph.chance(0.85) else graph.random.randrange(scores.rank)
    weights = graph.unchanged(
        graph.unary("Softmax", scores, **({} if axis == -1 and graph.chance(0.5) else {"axis": axis}))
    )
    if graph.chance(0.1):
        values = graph.input((2, *values.shape))
    if weights.shape[-1] != values.shape[-2]:
        return weights
    result = graph.matmul(weights, values) if np.all(_broadcast(weights.shape[:-2], values.shape[:-2])) else weights
    form = graph.random.random()
    if form < 0.25:
        gate = graph.input((*result.shape[:-1], 1 if graph.chance(0.5) else result.shape[-1]))
        gate = graph.binary("Add", gate, graph.constant(0.1)) if graph.chance(0.5) else swish(graph, gate)
        result = graph.binary("Mul", result, gate)
    elif form < 0.4:
        result = graph.binary("Add", result, x)
    elif form < 0.6 and result.rank >= 3:
        perm = list(range(result.rank))
        perm[-2], perm[-3] = perm[-3], perm[-2]
        result = graph.transpose(result, perm)
        if graph.chance(0.6):
            result = graph.reshape(result, (*result.shape[:-2], result.shape[-2] * result.shape[-1]))
    return result


def _broadcast(left: Sequence[int], right: Sequence[int]) -> list[bool]:
    return [a == b or 1 in (a, b) for a, b in zip(reversed(left), reversed(right), strict=False)]


def _scaled(graph: Graph, x: Value, factor: float) -> Value:
    if graph.chance(0.5):
        return graph.binary("Mul", x, graph.number(factor, x))
    divisor = graph.number(1 / factor, x)
    return graph.node("Div", [x, divisor], np.broadcast_shapes(x.shape, divisor.shape))


def product(graph: Graph, x: Value) -> Value:
    """Write MatMul or Gemm with scales, biases, transposes and an activation."""
    if x.rank < 2:
        x = graph.reshape(x, (1, *x.shape) if x.rank else (1, 1))
    width = graph.random.choice((1, 2, 3, x.shape[-1]))
    weights = graph.constant(graph.numbers.standard_normal((x.shape[-1], width)) * 0.5)
    if x.rank == 2 and graph.chance(0.3):
        bias = graph.constant(
            graph.numbers.standard_normal(
                graph.random.choice(((width,), (1, width), (x.shape[0], 1), (x.shape[0], width), (1,), ()))
            )
        )
        value = graph.node(
            "Gemm",
            [x, weights, bias],
            (x.shape[0], width),
            alpha=graph.random.choice((1.0, 0.5)),
            beta=graph.random.choice((1.0, 2.0)),
        )
    else:
        if graph.chance(0.3):
            x = _scaled(graph, x, graph.random.choice((0.5, 2, 1)))
        value = graph.matmul(x, weights)
        if graph.chance(0.6):
            value = graph.binary("Add", graph.unchanged(value), graph.parameter(value))
    if graph.chance(0.3):
        value = graph.binary("Mul", value, graph.parameter(value))
    return _activated(graph, value)


def convolution(graph: Graph, x: Value) -> Value:
    """Write Conv with a scale, a bias, a batch norm or an activation after it."""
    if x.rank > 4:
        x = graph.reshape(x, (1, *x.shape[:2], math.prod(x.shape[2:])))
    while x.rank < 4:
        x = graph.reshape(x, (1, *x.shape))
    channels, kernel = graph.random.choice((1, 2, 4)), graph.random.choice((1, 3))
    weights = graph.constant(graph.numbers.standard_normal((channels, x.shape[1], kernel, kernel)) * 0.4)
    inputs = [x, weights]
    if graph.chance(0.4):
        inputs.append(graph.constant(graph.numbers.standard_normal(channels)))
    value = graph.node("Conv", inputs, (x.shape[0], channels, *x.shape[2:]), pads=[kernel // 2] * 4)
    value = graph.unchanged(value)
    if graph.opset >= 14 and graph.chance(0.3):  # onnx's evaluator computes version 9 as in training
        parts = [graph.constant(np.abs(graph.numbers.standard_normal(channels)) + 0.2) for _ in range(4)]
        value = graph.node("BatchNormalization", [value, *parts], value.shape, epsilon=1e-3)
    if graph.chance(0.4):
        value = graph.binary(graph.random.choice(("Mul", "Add")), value, graph.parameter(value))
    if graph.chance(0.2):
        value = graph.binary("Add", value, x) if np.all(_broadcast(value.shape, x.shape)) else value
    return _activated(graph, value)


def _activated(graph: Graph, x: Value) -> Value:
    form = graph.random.random()
    if form < 0.4:
        return graph.unary(
            graph.random.choice(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Softplus", "Elu")), x
        )
    if form < 0.5:
        return graph.node("Clip", [x, graph.constant(0), graph.constant(6)], x.shape)
    if form < 0.7:
        return graph.random.choice((swish, gelu, fast_gelu, leaky_relu, hard_swish, mish))(graph, x)
    return x


def arithmetic(graph: Graph, x: Value) -> Value:
    """Write a chain of elementwise arithmetic that an optimizer may reorder, fold or drop."""
    for _ in range(graph.random.randint(2, 5)):
        form = graph.random.random()
        if form < 0.35:
            x = graph.binary(graph.random.choice(("Add", "Mul", "Max", "Min")), x, graph.parameter(x))
        elif form < 0.5:
            other = graph.parameter(x, positive=True)
            x = graph.node("Div", [x, other], np.broadcast_shapes(x.shape, other.shape))
        elif form < 0.6:
            other = graph.parameter(x)
            pair = (x, other) if graph.chance(0.5) else (other, x)
            x = graph.binary("Sub", *pair)
        elif form < 0.75:
            x = graph.unary(graph.random.choice(("Relu", "Abs", "Neg", "Tanh", "Sigmoid")), x)
        else:
            x = graph.unchanged(x, 1.0)
    return x


# Compositions of data movement


def gated_unit(graph: Graph, x: Value) -> Value:
    """Write a gated linear unit: one half times an activation of the other."""
    if not x.rank or x.shape[-1] % 2:
        x = (
            graph.node("Concat", [x, x], (*x.shape[:-1], 2 * x.shape[-1]), axis=-1)
            if x.rank
            else graph.reshape(x, (1,))
        )
    axis = x.rank - 1
    if x.shape[axis] % 2:
        return swish(graph, x)
    first, second = _halves(graph, x, axis)
    if graph.chance(0.3):
        first, second = second, first
    return graph.binary("Mul", first, graph.random.choice((sigmoid, swish, gelu, mish, leaky_relu))(graph, second))


def _halves(graph: Graph, x: Value, axis: int) -> tuple[Value, Value]:
    size = x.shape[axis] // 2
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    if graph.chance(0.5):
        names = [f"s{len(graph.nodes)}_{at}" for at in range(2)]
        sizes = graph.constant([size, size], np.int64)
        graph.nodes.append(helper.make_node("Split", [x.name, sizes.name], names, axis=axis))
        halves = Value(names[0], shape), Value(names[1], shape)
        graph.values.extend(halves)
        return halves
    parts = []
    for start in (0, size):
        end = start + size if start == 0 or graph.chance(0.5) else 2**31
        places = [graph.constant([number], np.int64) for number in (start, end, axis)]
        parts.append(graph.node("Slice", [x, *places], shape))
    return parts[0], parts[1]


def rotary_embedding(graph: Graph, x: Value) -> Value:
    """Write a rotary embedding."""
    if not x.rank or x.shape[-1] % 2:
        return arithmetic(graph, x)
    first, second = _halves(graph, x, x.rank - 1)
    pair = [graph.unary("Neg", second), first] if graph.chance(0.8) else [graph.unary("Neg", first), second]
    rotated = graph.node("Concat", pair, x.shape, axis=x.rank - 1 if graph.chance(0.5) else -1)
    left = graph.binary("Mul", x, graph.parameter(x))
    right = graph.binary("Mul", rotated, graph.parameter(rotated))
    return graph.binary("Add", left, right)


def group_norm(graph: Graph, x: Value) -> Value:
    """Write a group norm by reshaping and InstanceNormalization or a written-out norm."""
    while x.rank < 3:
        x = graph.reshape(x, (1, *x.shape))
    groups = graph.random.choice([size for size in (1, 2, x.shape[1]) if x.shape[1] % size == 0])
    inner = graph.reshape(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    if graph.chance(0.5):
        ones, zeros = graph.constant(np.ones(groups)), graph.constant(np.zeros(groups))
        inner = graph.node("InstanceNormalization", [inner, ones, zeros], inner.shape, epsilon=1e-3)
    else:
        shape = inner.shape
        inner = norm(graph, inner)
        if inner.shape != shape:
            return inner
    value = graph.reshape(inner, x.shape)
    value = graph.binary("Mul", value, graph.parameter(value, near=1))
    return graph.binary("Add", value, graph.parameter(value)) if graph.chance(0.7) else value


def squeeze_excite(graph: Graph, x: Value) -> Value:
    """Write squeeze and excite: channels scaled by a gate that is computed from their means."""
    if x.rank < 3:
        return swish(graph, x)
    means = graph.reduce("ReduceMean", x, range(2, x.rank), keepdims=1)
    gate = graph.random.choice((sigmoid, hard_swish, leaky_relu))(
        graph, graph.binary("Mul", means, graph.parameter(means))
    )
    return graph.binary("Mul", x, gate)


def residual(graph: Graph, x: Value) -> Value:
    """Write an activation with a residual connection, and a norm of the sum."""
    inner = graph.random.choice((product, gelu, swish, attention))(graph, x)
    value = graph.binary("Add", x, inner)
    if graph.chance(0.4):
        value = graph.binary("Add", value, graph.parameter(value))
    return norm(graph, value)


def mask(graph: Graph, x: Value) -> Value:
    """Write a selection by a condition, or a mask made of numbers."""
    bound = graph.parameter(x)
    op_type = graph.random.choice(("Greater", "Less", "GreaterOrEqual" if graph.opset >= 16 else "Less"))
    condition = graph.node(op_type, [x, bound], np.broadcast_shapes(x.shape, bound.shape), floating=False)
    if graph.chance(0.3):
        condition = graph.node("Not", [condition], condition.shape, floating=False)
    if graph.chance(0.2):
        condition = graph.node("Not", [condition], condition.shape, floating=False)
    form = graph.random.random()
    if form < 0.5:
        other = graph.number(graph.random.choice((0, -10000, 1)), x) if graph.chance(0.6) else graph.parameter(x)
        pair = [x, other] if graph.chance(0.6) else [other, x]
        shape = np.broadcast_shapes(condition.shape, x.shape, other.shape)
        value = graph.node("Where", [condition, *pair], shape)
    else:
        numbers = graph.node("Cast", [condition], condition.shape, to=graph.type)
        if graph.chance(0.5):
            one = graph.number(1, numbers)
            numbers = graph.node("Sub", [one, numbers], np.broadcast_shapes(one.shape, numbers.shape))
        factor = graph.number(graph.random.choice((-100, 2)), numbers)
        value = graph.binary(graph.random.choice(("Add", "Mul")), x, graph.binary("Mul", numbers, factor))
    return softmax(graph, value, is_masked=True) if graph.chance(0.3) else value


def movement(graph: Graph, x: Value) -> Value:
    """Write data movement whose shapes are computed: reshapes, transposes, expansions, slices and padding."""
    for _ in range(graph.random.randint(1, 3)):
        form = graph.random.randrange(7)
        if form == 0:
            shape = graph.node("Shape", [x], (x.rank,), floating=False)
            x = graph.node("Reshape", [graph.reshape(x, (math.prod(x.shape),)), shape], x.shape)
        elif form == 1:
            shape = graph.node("Shape", [x], (x.rank,), floating=False)
            x = graph.binary("Mul", x, graph.node("Expand", [graph.constant(2), shape], x.shape))
        elif form == 2:
            perm = list(range(x.rank))
            graph.random.shuffle(perm)
            x = graph.transpose(x, perm)
        elif form == 3 and x.rank:
            shape = list(x.shape)
            shape[graph.random.randrange(x.rank)] = -1
            x = graph.node("Reshape", [x, graph.constant(shape, np.int64)], x.shape)
        elif form == 4 and x.rank:
            pads = [graph.random.choice((0, 0, 1)) for _ in range(2 * x.rank)]
            sizes = [size + pads[at] + pads[at + x.rank] for at, size in enumerate(x.shape)]
            x = graph.node("Pad", [x, graph.constant(pads, np.int64)], sizes)
        elif form == 5 and x.rank:
            axis = graph.random.randrange(x.rank)
            x = graph.node("Concat", [x, x], (*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :]), axis=axis)
        elif form == 6 and x.rank:
            axis = graph.random.randrange(x.rank)
            at = graph.constant([graph.random.randrange(-x.shape[axis], x.shape[axis])], np.int64)
            x = graph.node("Gather", [x, at], (*x.shape[:axis], 1, *x.shape[axis + 1 :]), axis=axis)
        x = graph.unchanged(x, 0.2)
    return graph.binary(graph.random.choice(("Add", "Mul")), x, graph.parameter(x))


def operators(graph: Graph, x: Value) -> Value:
    """Write norms and activations that are operators of their own, with parameters of several shapes."""
    form = graph.random.random()
    if form < 0.4 and graph.opset >= 17 and x.rank:
        axis = graph.random.randrange(x.rank)
        scale = graph.constant(graph.numbers.standard_normal(x.shape[axis:]))
        inputs = [x, scale]
        if graph.chance(0.6):
            inputs.append(graph.constant(graph.numbers.standard_normal(x.shape[axis:])))
        return graph.node(
            "LayerNormalization", inputs, x.shape, axis=axis - x.rank if graph.chance(0.5) else axis, epsilon=1e-3
        )
    if form < 0.6 and graph.opset >= 20:
        return graph.unary("Gelu", x, approximate=graph.random.choice(("none", "tanh")))
    if form < 0.8:
        return graph.unary(
            graph.random.choice(("HardSwish", "Softsign", "Selu", "Elu", "ThresholdedRelu"))
            if graph.opset >= 14
            else "Selu",
            x,
        )
    slope = graph.parameter(x, near=0.2)
    if np.broadcast_shapes(slope.shape, x.shape) != x.shape:
        return graph.unary("Selu", x)
    return graph.node("PRelu", [x, slope], x.shape)


# Compositions with one detail that optimizers overlook


def nearly_norm(graph: Graph, x: Value) -> Value:
    """Write a layer norm or an RMS norm of a square value, with one detail changed."""
    x = graph.square(x, graph.random.choice((1, 2, 2, 3)))
    is_layer = graph.chance(0.6)
    changes = ["exponent", "power of two", "square without keepdims", "rank of two", "rank of epsilon"]
    change = graph.random.choice(changes + ["mean first", "mean without keepdims", "root first"] * is_layer)
    centered = x
    if is_layer:
        mean = graph.reduce("ReduceMean", x, (x.rank - 1,), keepdims=int(change != "mean without keepdims"))
        pair = (mean, x) if change == "mean first" else (x, mean)
        centered = graph.node("Sub", pair, np.broadcast_shapes(x.shape, mean.shape))
    two = graph.constant(np.full((1, 1) if change == "rank of two" else (), 4 if change == "exponent" else 2))
    pair = (two, centered) if change == "power of two" else (centered, two)
    power = graph.node("Pow", pair, np.broadcast_shapes(centered.shape, two.shape))
    variance = graph.reduce("ReduceMean", power, (power.rank - 1,), keepdims=int(change != "square without keepdims"))
    epsilon = graph.constant(np.full((1, 1, 1) if change == "rank of epsilon" else (), 0.1))
    root = graph.unary("Sqrt", graph.binary("Add", variance, epsilon))
    pair = (root, centered) if change == "root first" else (centered, root)
    value = graph.node("Div", pair, np.broadcast_shapes(centered.shape, root.shape))
    length = value.shape[-1]
    value = graph.binary("Mul", value, graph.constant(graph.numbers.standard_normal(length) + 1))
    return graph.binary("Add", value, graph.constant(graph.numbers.standard_normal(length))) if is_layer else value


def short_scale(graph: Graph, x: Value) -> Value:
    """Write an RMS norm of single numbers, whose scale has more of them."""
    x = graph.reduce("ReduceMean", x, (x.rank - 1,), keepdims=1) if x.rank else graph.reshape(x, (1,))
    variance = graph.reduce("ReduceMean", square(graph, x), (-1,), keepdims=1)
    root = graph.unary("Sqrt", graph.binary("Add", variance, graph.constant(0.1)))
    value = graph.node("Div", [x, root], np.broadcast_shapes(x.shape, root.shape))
    return graph.binary("Mul", value, graph.constant(graph.numbers.standard_normal(2) + 1))


def reciprocal(graph: Graph, x: Value) -> Value:
    """Write a product with a reciprocal, whose 1 may have more dimensions than the other operands."""
    one = graph.constant(np.ones((1,) * graph.random.randint(0, x.rank + 2)))
    divisor = graph.input(x.shape, positive=True)
    inverse = graph.node("Div", [one, divisor], np.broadcast_shapes(one.shape, x.shape))
    factor = graph.unchanged(x, 0.4)
    return graph.node("Mul", [inverse, factor], inverse.shape)


def batch_product(graph: Graph, x: Value) -> Value:
    """Write a product of a constant and a Transpose of an input that makes a later dimension the first."""
    size = graph.random.choice((2, 3, 4))
    perm = graph.random.choice([(1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
    batch = graph.unchanged(graph.transpose(graph.input((size,) * 3), perm), 0.3)
    weights = graph.constant(graph.numbers.standard_normal((size, size)) * 0.5)
    if graph.chance(0.3):
        weights = graph.unary("Neg", weights)
    product = graph.matmul(*((batch, weights) if graph.chance(0.7) else (weights, batch)))
    mean = graph.reduce("ReduceMean", x, range(x.rank), keepdims=0) if x.rank else x
    return graph.binary("Add", product, mean)


def column_product(graph: Graph, x: Value) -> Value:
    """Write a product with a column, and one of the result and a constant of one element."""
    while x.rank < 2:
        x = graph.reshape(x, (1, *x.shape))
    column = graph.constant(graph.numbers.standard_normal((x.shape[-1], 1)))
    value = graph.unchanged(graph.matmul(x, column), 0.2)
    return graph.matmul(value, graph.constant([[1.5]]))


def vector_slopes(graph: Graph, x: Value) -> Value:
    """Write a PRelu whose slopes are a vector as long as there are channels."""
    x = graph.square(x, graph.random.choice((3, 4)))
    vector = graph.constant(np.abs(graph.numbers.standard_normal(x.shape[-1])))
    negative = graph.unary("Relu", graph.unary("Neg", x))
    return graph.node("Sub", [graph.unary("Relu", x), graph.binary("Mul", vector, negative)], x.shape)


def swish_factor(graph: Graph, x: Value) -> Value:
    """Write a Swish whose factor is a computed number."""
    factor = graph.unary("Abs", graph.input((1,) * graph.random.randint(1, max(1, x.rank))))
    scaled = graph.binary("Mul", x, factor)
    return graph.binary("Mul", x, graph.unary("Sigmoid", scaled))


def cast(graph: Graph, x: Value) -> Value:
    """Write a sum with an input that is cast to the type that it has; the result of the cast is an output."""
    other = graph.unary("Cast", graph.input(x.shape[graph.random.randint(0, x.rank) :]), to=graph.type)
    graph.outputs.append(other)
    return graph.binary("Add", x, other)


def nearly_neutral(graph: Graph, x: Value) -> Value:
    """Write a product that is the identity in float32 alone, less the value."""
    x = graph.binary("Add", graph.unary("Abs", x), graph.constant(1))
    product = graph.node("Mul", [x, graph.constant(1 + 1e-9)], x.shape)
    return graph.binary("Mul", graph.node("Sub", [product, x], x.shape), graph.constant(1e9))


def empty_expand(graph: Graph, x: Value) -> Value:
    """Write an expansion to nothing, which is an output, and an activation."""
    x = graph.unary("Abs", x)
    single = graph.reduce("ReduceMax", x, range(x.rank), keepdims=1) if x.rank else graph.reshape(x, (1,))
    shape = (*single.shape[:-1], 0)
    empty = graph.node("Expand", [single, graph.constant(shape, np.int64)], shape)
    graph.values.remove(empty)
    graph.outputs.append(graph.unary("Neg", empty))
    return graph.binary("Add", x, graph.parameter(x))


def quantized_input(graph: Graph, x: Value) -> Value:
    """Write a scale before a norm or a Gather, and quantize another input.

    Only inputs are quantized: elsewhere a sum in another order may change a number by a step of the quantization.
    """
    if graph.opset < 19:
        raise ValueError("onnx's evaluator has no DequantizeLinear of this opset")
    while x.rank < 3:
        x = graph.reshape(x, (1, *x.shape))
    shape = [1] * x.rank
    if graph.chance(0.5):
        axis = graph.random.randrange(x.rank)
        shape[axis] = x.shape[axis]
    scaled = graph.binary("Mul", x, graph.constant(graph.numbers.uniform(0.5, 3, shape)))
    form = graph.random.randrange(5)
    if form == 0:
        scale, bias = (graph.constant(graph.numbers.standard_normal(x.shape[1])) for _ in range(2))
        value = graph.node("InstanceNormalization", [scaled, scale, bias], x.shape, epsilon=0.1)
    elif form == 1 and graph.opset >= 17:
        scale = graph.constant(graph.numbers.standard_normal(x.shape[-1]))
        value = graph.node("LayerNormalization", [scaled, scale], x.shape, epsilon=0.1)
    elif form == 2:
        axis = graph.random.randrange(1, x.rank)
        size = x.shape[axis]
        indices = graph.constant(graph.numbers.integers(-size, size, (2, 2)), np.int64)
        sizes = (*x.shape[:axis], 2, 2, *x.shape[axis + 1 :])
        value = graph.node("Gather", [scaled, indices], sizes, axis=axis)
    else:
        value = (norm, length_norm)[form % 2](graph, scaled)
    kinds = [np.uint8, np.int8]
    side = graph.input((2, 3))
    if graph.chance(0.5):
        side = graph.unary("Relu", graph.unary("Neg", side))
        kinds += [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
        kinds += [ml_dtypes.uint4, ml_dtypes.int4] * 2 * (graph.opset >= 21)
    side = requantize(graph, side, graph.random.choice(kinds))
    mean = graph.reduce("ReduceMean", side, (0, 1), keepdims=0)
    graph.outputs.append(side)
    return graph.binary("Add", value, mean)


def requantize(graph: Graph, x: Value, dtype: Any) -> Value:
    """Quantize a value, and perhaps once more with the same parameters or others."""
    step, zero = 0.05, 0 if dtype not in (np.uint8, np.int8) else graph.random.choice((0, 100))
    for at in range(graph.random.choice((1, 2, 2))):
        if at and graph.chance(0.7):
            step, zero = (0.07, zero) if zero == 0 or graph.chance(0.5) else (step, 0)
        scale = graph.constant(0.5 if dtype not in (np.uint8, np.int8) else step)
        zero_point = graph.constant(zero, dtype)
        stored = graph.node("QuantizeLinear", [x, scale, zero_point], x.shape, floating=False)
        x = graph.node("DequantizeLinear", [stored, scale, zero_point], x.shape)
    return x


def quantization_axes(graph: Graph, x: Value) -> Value:
    """Quantize a square matrix by rows, and then by columns or by rows again; add its mean to a value.

    No multiple of one scale lies halfway between two multiples of another, where engines round differently.
    """
    if graph.opset < 19:
        raise ValueError("onnx's evaluator has no DequantizeLinear of this opset")
    matrix = graph.input((3, 3))
    scale = graph.constant(graph.numbers.choice((0.05, 0.07, 0.11), 3))
    zero_point = graph.constant(graph.numbers.choice((90, 100), 3), np.uint8)
    for axis in (0, graph.random.choice((0, 1, 1))):
        stored = graph.node("QuantizeLinear", [matrix, scale, zero_point], (3, 3), floating=False, axis=axis)
        matrix = graph.node("DequantizeLinear", [stored, scale, zero_point], (3, 3), axis=axis)
    if graph.chance(0.3):  # with one reader more, optimizers do not move it
        graph.outputs.append(matrix)
    return graph.binary("Add", x, graph.reduce("ReduceMean", matrix, (0, 1), keepdims=0))


FRAGMENTS: dict[str, Callable[[Graph, Value], Value]] = {
    "norm": norm,
    "length_norm": length_norm,
    "softmax": softmax,
    "swish": swish,
    "gelu": gelu,
    "fast_gelu": fast_gelu,
    "leaky_relu": leaky_relu,
    "hard_swish": hard_swish,
    "mish": mish,
    "attention": attention,
    "product": product,
    "convolution": convolution,
    "arithmetic": arithmetic,
    "gated_unit": gated_unit,
    "rotary_embedding": rotary_embedding,
    "group_norm": group_norm,
    "squeeze_excite": squeeze_excite,
    "residual": residual,
    "mask": mask,
    "movement": movement,
    "operators": operators,
    "nearly_norm": nearly_norm,
    "short_scale": short_scale,
    "reciprocal": reciprocal,
    "batch_product": batch_product,
    "column_product": column_product,
    "vector_slopes": vector_slopes,
    "swish_factor": swish_factor,
    "cast": cast,
    "nearly_neutral": nearly_neutral,
    "empty_expand": empty_expand,
    "quantized_input": quantized_input,
    "quantization_axes": quantization_axes,
}
TYPES_OF_FRAGMENTS = {
    "nearly_neutral": TensorProto.DOUBLE,
    "quantized_input": TensorProto.FLOAT,
    "quantization_axes": TensorProto.FLOAT,
    "batch_product": TensorProto.FLOAT16,
}
"""Data types of the graphs that hold these fragments; those of others are drawn."""
