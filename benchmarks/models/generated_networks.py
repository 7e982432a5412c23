"""Random networks by seed: kinds, widths, depths and sizes that nothing was tuned to.

A network belongs to one of three families (pictures, rows or lines) and is a chain of random blocks of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.models.writer import Writer

_OPSET = 17
_Shape = tuple[int, ...]
_Drawn = TypeVar("_Drawn")


def generated_networks(seed: int, count: int = 12) -> Mapping[str, Callable[[], onnx.ModelProto]]:
    """Return the maker of each network, by name; the kinds take turns."""
    families = list(_FAMILIES)
    return {
        f"{families[number % len(families)]} {seed}.{number}": partial(
            _network, families[number % len(families)], seed, number
        )
        for number in range(count)
    }


@dataclass
class _Drawing:
    """A network that is being generated: the last value, and its shape."""

    writer: Writer
    chance: Random
    x: str
    shape: _Shape
    activation: str = field(default="Relu")

    def any(self, *choices: _Drawn) -> _Drawn:
        return self.chance.choice(choices)

    def node(self, op_type: str, *inputs: str, **attributes: object) -> str:
        return self.writer.node(op_type, *inputs, **attributes)

    def number(self, value: float) -> str:
        return self.writer.constant(np.float32(value))

    def full(self, size: int, value: float) -> str:
        return self.writer.constant(np.full(size, value, np.float32))

    def activated(self, x: str) -> str:
        """Add this network's activation."""
        if self.activation == "Swish":
            return self.node("Mul", x, self.node("Sigmoid", x))
        if self.activation == "Gelu":
            gate = self.node("Erf", self.node("Div", x, self.number(2**0.5)))
            product = self.node("Mul", x, self.node("Add", gate, self.number(1.0)))
            return self.node("Mul", product, self.number(0.5))
        if self.activation == "Clip":
            return self.node("Clip", x, self.number(0), self.number(6))
        return self.node(self.activation, x)


def _network(family: str, seed: int, number: int) -> onnx.ModelProto:
    chance = Random(f"{family} {seed} {number}")
    draw_shape, blocks = _FAMILIES[family]
    shape = draw_shape(chance)
    drawing = _Drawing(Writer(1000 * seed + number), chance, "x", shape)
    drawing.activation = drawing.any("Relu", "Relu", "Swish", "Gelu", "HardSwish", "Tanh", "Clip", "LeakyRelu")
    chosen = chance.sample(blocks, min(len(blocks), chance.randint(1, 3)))
    for _ in range(chance.randint(2, 6)):
        chance.choice(chosen)(drawing)
    drawing.writer.node("Identity", drawing.x, output="y")
    input_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    output_info = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(drawing.writer.nodes, "network", [input_info], [output_info], drawing.writer.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


def _conv(drawing: _Drawing, x: str, channels: int, sizes: _Shape, stride: int = 1, group: int = 1) -> str:
    """Add a convolution to `sizes`, the channels and then the kernel, padded to the same size."""
    weight = drawing.writer.constant(drawing.writer.numbers(sizes[0], channels // group, *sizes[1:]))
    pads = [size // 2 for size in sizes[1:]] * 2
    strides = [stride] * len(pads[::2])
    return drawing.node("Conv", x, weight, drawing.full(sizes[0], 0.1), pads=pads, strides=strides, group=group)


def _plain_block(drawing: _Drawing) -> None:
    """Add a convolution, perhaps with a stride of two."""
    batch, channels, *sides = drawing.shape
    width = drawing.any(channels, 2 * channels, channels + 12, 24, 40, 64, 96)
    stride = drawing.any(1, 1, 2) if min(sides) >= 8 else 1
    kernel = drawing.any(1, 3, 3, 5)
    result = _conv(drawing, drawing.x, channels, (width, *[kernel] * len(sides)), stride)
    drawing.x = drawing.activated(result)
    drawing.shape = (batch, width, *(-(-side // stride) for side in sides))


def _residual_block(drawing: _Drawing) -> None:
    """Add two convolutions with a residual connection."""
    width, sides = drawing.shape[1], len(drawing.shape) - 2
    narrow = max(4, width // drawing.any(1, 2, 4))
    branch = drawing.activated(_conv(drawing, drawing.x, width, (narrow, *[drawing.any(1, 3)] * sides)))
    branch = _conv(drawing, branch, narrow, (width, *[3] * sides))
    drawing.x = drawing.activated(drawing.node("Add", branch, drawing.x))


def _separable_block(drawing: _Drawing) -> None:
    """Add an inverted residual, perhaps with squeeze and excitation."""
    width, sides = drawing.shape[1], len(drawing.shape) - 2
    wide, points = width * drawing.any(1, 2, 4), [1] * sides
    branch = drawing.activated(_conv(drawing, drawing.x, width, (wide, *points)))
    branch = drawing.activated(_conv(drawing, branch, wide, (wide, *[drawing.any(3, 5)] * sides), group=wide))
    if drawing.any(True, False):
        weights = drawing.node("GlobalAveragePool", branch)
        weights = drawing.node("Sigmoid", _conv(drawing, weights, wide, (wide, *points)))
        branch = drawing.node("Mul", branch, weights)
    drawing.x = drawing.node("Add", drawing.x, _conv(drawing, branch, wide, (width, *points)))


def _joined_block(drawing: _Drawing) -> None:
    """Add a dense layer: concatenate the input and a convolution of it, perhaps normalized first."""
    channels, sides, growth = drawing.shape[1], len(drawing.shape) - 2, drawing.any(8, 12, 16, 20, 32)
    x = drawing.x
    if drawing.any(True, False):
        x = drawing.node("BatchNormalization", x, *(drawing.full(channels, value) for value in (1, 0, 0.1, 1)))
    result = _conv(drawing, drawing.activated(x), channels, (growth, *[3] * sides))
    drawing.x = drawing.node("Concat", drawing.x, result, axis=1)
    drawing.shape = (drawing.shape[0], channels + growth, *drawing.shape[2:])


def _pooled_block(drawing: _Drawing) -> None:
    """Add a pooling by two."""
    if min(drawing.shape[2:]) < 8:
        return _residual_block(drawing)
    kind, sides = drawing.any("MaxPool", "AveragePool"), len(drawing.shape) - 2
    drawing.x = drawing.node(kind, drawing.x, kernel_shape=[2] * sides, strides=[2] * sides)
    drawing.shape = (*drawing.shape[:2], *(side // 2 for side in drawing.shape[2:]))
    return None


def _dense(drawing: _Drawing, x: str, width_in: int, width: int) -> str:
    product = drawing.node("MatMul", x, drawing.writer.weight(width_in, width))
    return drawing.node("Add", product, drawing.full(width, 0.1)) if drawing.any(True, True, False) else product


def _normalized(drawing: _Drawing, x: str) -> str:
    """Add a layer normalization or root mean square normalization, as one node or written out, or none."""
    width, kind = drawing.shape[-1], drawing.any("one", "spelled out", "size", "none")
    if kind == "one":
        return drawing.node("LayerNormalization", x, drawing.full(width, 1), drawing.full(width, 0), axis=-1)
    if kind == "none":
        return x
    if kind == "spelled out":
        x = drawing.node("Sub", x, drawing.node("ReduceMean", x, axes=[-1], keepdims=1))
    mean = drawing.node("ReduceMean", drawing.node("Mul", x, x), axes=[-1], keepdims=1)
    spread = drawing.node("Sqrt", drawing.node("Add", mean, drawing.number(1e-5)))
    return drawing.node("Mul", drawing.node("Div", x, spread), drawing.full(width, 1.1))


def _wide_block(drawing: _Drawing) -> None:
    """Add a perceptron of two products."""
    width, wider = drawing.shape[-1], drawing.shape[-1] * drawing.any(1, 2, 4)
    wide = drawing.activated(_dense(drawing, _normalized(drawing, drawing.x), width, wider))
    result = _dense(drawing, wide, wider, width)
    drawing.x = drawing.node("Add", drawing.x, result) if drawing.any(True, True, False) else result


def _gated_block(drawing: _Drawing) -> None:
    """Add a gated perceptron."""
    width, wider = drawing.shape[-1], drawing.shape[-1] * drawing.any(1, 2)
    x = _normalized(drawing, drawing.x)
    gate = drawing.activated(_dense(drawing, x, width, wider))
    result = _dense(drawing, drawing.node("Mul", gate, _dense(drawing, x, width, wider)), wider, width)
    drawing.x = drawing.node("Add", drawing.x, result)


def _attention_block(drawing: _Drawing) -> None:
    """Add self-attention."""
    _, rows, width = drawing.shape
    heads = drawing.any(2, 4)
    split = drawing.writer.constant(np.array([1, rows, heads, width // heads]))
    x = _normalized(drawing, drawing.x)
    query, key, value = (
        drawing.node("Transpose", drawing.node("Reshape", _dense(drawing, x, width, width), split), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = drawing.node("Mul", drawing.node("MatMul", query, key), drawing.number((width // heads) ** -0.5))
    mixed = drawing.node("MatMul", drawing.node("Softmax", scores, axis=-1), value)
    mixed = drawing.node("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = drawing.node("Reshape", mixed, drawing.writer.constant(np.array([1, rows, width])))
    drawing.x = drawing.node("Add", drawing.x, _dense(drawing, mixed, width, width))


def _mixing_block(drawing: _Drawing) -> None:
    """Add a product over rows, as in an MLP mixer."""
    rows = drawing.shape[1]
    turned = drawing.node("Transpose", _normalized(drawing, drawing.x), perm=[0, 2, 1])
    turned = drawing.activated(_dense(drawing, turned, rows, rows))
    drawing.x = drawing.node("Add", drawing.x, drawing.node("Transpose", turned, perm=[0, 2, 1]))


def _arithmetic_block(drawing: _Drawing) -> None:
    """Add some elementwise operations."""
    for _ in range(drawing.chance.randint(2, 5)):
        kind = drawing.any("Abs", "Tanh", "Mul", "Add", "Exp", "Softmax", "Div")
        if kind in ("Mul", "Add"):
            drawing.x = drawing.node(kind, drawing.x, drawing.full(drawing.shape[-1], 1.05))
        elif kind == "Exp":
            drawing.x = drawing.node("Exp", drawing.node("Neg", drawing.node("Abs", drawing.x)))
        elif kind == "Div":
            drawing.x = drawing.node(
                "Div", drawing.x, drawing.node("Add", drawing.node("Abs", drawing.x), drawing.number(1))
            )
        else:
            drawing.x = drawing.node(kind, drawing.x)


def _recurrent_block(drawing: _Drawing) -> None:
    """Add an LSTM or a GRU."""
    _, rows, width = drawing.shape
    gates, kind = drawing.any((4, "LSTM"), (3, "GRU"))
    weights = [drawing.writer.constant(drawing.writer.numbers(1, gates * width, width)) for _ in range(2)]
    steps = drawing.node("Transpose", drawing.x, perm=[1, 0, 2])
    result = drawing.node(kind, steps, *weights, hidden_size=width)
    drawing.x = drawing.node("Reshape", result, drawing.writer.constant(np.array([1, rows, width])))


def _picture(chance: Random) -> _Shape:
    side = chance.choice((14, 20, 28, 40, 56, 64))
    return 1, chance.choice((3, 8, 12, 16, 24, 32, 48)), side, side


def _rows(chance: Random) -> _Shape:
    return 1, chance.choice((1, 2, 8, 20, 48, 64, 100)), chance.choice((48, 64, 96, 128, 192, 256, 384))


def _line(chance: Random) -> _Shape:
    return 1, chance.choice((4, 12, 16, 24, 40, 64)), chance.choice((64, 100, 256, 500, 1000))


_Block = Callable[[_Drawing], None]
_ALONG: Sequence[_Block] = (_plain_block, _residual_block, _separable_block, _joined_block, _pooled_block)
_FAMILIES: Mapping[str, tuple[Callable[[Random], _Shape], Sequence[_Block]]] = {
    "pictures": (_picture, _ALONG),
    "rows": (
        _rows,
        (_wide_block, _gated_block, _attention_block, _mixing_block, _arithmetic_block, _recurrent_block),
    ),
    "lines": (_line, _ALONG),
}
