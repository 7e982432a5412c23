"""Inputs of every op, by families of ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.drivers.openvino.sweep import movements, quantization
from tests.drivers.openvino.sweep.attributes import Shape, axes, axis
from tests.drivers.openvino.sweep.forms import Draft
from tests.drivers.openvino.sweep.shapes import ALL_NUMBERS, chosen, integers, narrowed, picture, some_shape


def unary(draft: Draft) -> None:
    draft.kinds = ALL_NUMBERS
    draft.shapes = [some_shape(draft.random)]
    draft.draw_attributes(draft.shapes[0])


def finite(draft: Draft) -> None:
    unary(draft)
    draft.kinds = ("normal", "steps")


def cast(draft: Draft) -> None:
    """Draw positive numbers, because casts out of range are undefined."""
    unary(draft)
    draft.kinds = ("positive",)


def ranked(draft: Draft) -> None:
    draft.shapes = [some_shape(draft.random, 1)]
    draft.draw_attributes(draft.shapes[0])


def broadcast(draft: Draft) -> None:
    shape = some_shape(draft.random)
    draft.kinds = ALL_NUMBERS if draft.op_type not in ("Add", "Sub", "Mul", "Pow") else draft.kinds
    draft.shapes = [narrowed(draft.random, shape) for _ in draft.schema.inputs]


def power(draft: Draft) -> None:
    broadcast(draft)
    draft.kinds = ("positive", "steps")


def variadic(draft: Draft) -> None:
    shape = some_shape(draft.random)
    draft.shapes = [narrowed(draft.random, shape) for _ in range(draft.random.randint(1, 4))]


def prelu(draft: Draft) -> None:
    shape = draft.random.choice((some_shape(draft.random), picture(draft.random)))
    channels = (shape[1], *[1] * (len(shape) - 2)) if len(shape) > 1 else shape
    draft.shapes = [shape, draft.random.choice((narrowed(draft.random, shape), channels))]


def clip(draft: Draft) -> None:
    draft.kinds = ALL_NUMBERS
    bounds = len(draft.schema.inputs) - 1
    bound_shapes = [() if draft.random.random() < 0.7 else None for _ in range(bounds)]
    draft.shapes = [some_shape(draft.random), *bound_shapes]
    draft.draw_attributes(draft.shapes[0])


def window(draft: Draft) -> None:
    """Draw a pooling window; automatic padding excludes explicit pads."""
    draft.shapes = [picture(draft.random)]
    _draw_window(draft, draft.shapes[0])


def _draw_window(draft: Draft, shape: Shape) -> None:
    draft.draw_attributes(shape)
    if draft.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        draft.attributes.pop("pads", None)


def convolution(draft: Draft) -> None:
    random, transposed = draft.random, draft.op_type == "ConvTranspose"
    batch, channels, *sizes = picture(random)
    group = random.choice([candidate for candidate in (1, 1, 2, 3, channels) if channels % candidate == 0])
    kernel = tuple(chosen(draft, "kernel_shape", (batch, channels, *sizes)))
    filters = random.choice((1, 2, 3))
    weights = (channels, filters) if transposed else (filters * group, channels // group)
    bias = (filters * group,) if random.random() < 0.5 else None
    draft.shapes = [(batch, channels, *sizes), (*weights, *kernel), bias]
    draft.attributes = {"kernel_shape": kernel, "group": group}
    _draw_window(draft, draft.shapes[0])
    for name in ("kernel_shape", "output_shape", *(("group",) if group == 1 else ())):
        if random.random() < 0.5:
            draft.attributes.pop(name, None)


def whole_picture(draft: Draft) -> None:
    draft.shapes = [picture(draft.random)]
    draft.draw_attributes(draft.shapes[0])


def per_channel(draft: Draft) -> None:
    shape = draft.random.choice((picture(draft.random), some_shape(draft.random, 2)))
    vectors = len(draft.schema.inputs) - 1
    draft.shapes = [shape, *[(shape[1],)] * vectors]
    draft.kinds = ("positive",)
    draft.draw_attributes(shape)
    draft.attributes.pop("training_mode", None)


def group_norm(draft: Draft) -> None:
    shape = picture(draft.random)
    draft.shapes = [shape, (shape[1],), (shape[1],)]
    draft.attributes = {"num_groups": draft.random.choice([n for n in range(1, shape[1] + 1) if shape[1] % n == 0])}
    draft.draw_attributes(shape)


def layer_norm(draft: Draft) -> None:
    random, shape = draft.random, some_shape(draft.random, 1)
    draft.draw_attributes(shape)
    inner = shape[draft.attributes.get("axis", -1) :]
    scale = random.choice((inner, inner, narrowed(random, inner)))
    draft.shapes = [shape, scale, random.choice((None, inner, scale))]
    draft.outputs = random.choice((1, 1, 1, 2, 3))


def reduction(draft: Draft) -> None:
    draft.shapes = [some_shape(draft.random)]
    draft.kinds = ("positive",) if draft.op_type in ("ReduceLogSum", "ReduceProd") else draft.kinds
    draft.draw_attributes(draft.shapes[0])
    if draft.has_input(1) and draft.random.random() < 0.8:
        integers(draft, 1, axes(draft.random, draft.shapes[0]))


def recurrent(draft: Draft) -> None:
    random = draft.random
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[draft.op_type]
    length, batch, size, hidden = (random.choice((1, 2, 3, 4)) for _ in range(4))
    draft.attributes = {"hidden_size": hidden}
    draft.draw_attributes(())
    directions = 2 if draft.attributes.get("direction") == "bidirectional" else 1
    for name in ("activations", "activation_alpha", "activation_beta"):
        if name in draft.attributes:
            draft.attributes[name] = draft.attributes[name] * directions
    optional = lambda shape: shape if random.random() < 0.5 else None  # noqa: E731
    draft.shapes = [
        (length, batch, size),
        (directions, gates * hidden, size),
        (directions, gates * hidden, hidden),
        optional((directions, 2 * gates * hidden)),
        None,
        optional((directions, batch, hidden)),
    ]
    if draft.op_type == "LSTM":
        draft.shapes += [optional((directions, batch, hidden)), optional((directions, 3 * hidden))]
    if random.random() < 0.4:
        integers(draft, 4, [random.randint(1, length) for _ in range(batch)], np.int32)
    draft.outputs = random.randint(1, len(draft.schema.outputs))


def matmul(draft: Draft) -> None:
    random, (rows, inner, columns) = draft.random, (draft.random.randint(1, 5) for _ in range(3))
    batch = some_shape(random, 0, 3)
    left = random.choice(((inner,), (*narrowed(random, batch), rows, inner)))
    right = random.choice(((inner,), (*narrowed(random, batch), inner, columns)))
    draft.shapes = [left, right]


def gemm(draft: Draft) -> None:
    random, (rows, inner, columns) = draft.random, (draft.random.randint(1, 5) for _ in range(3))
    draft.draw_attributes(())
    left = (inner, rows) if draft.attributes.get("transA") else (rows, inner)
    right = (columns, inner) if draft.attributes.get("transB") else (inner, columns)
    draft.shapes = [left, right, random.choice((None, narrowed(random, (rows, columns))))]


def dropout(draft: Draft) -> None:
    draft.kinds = ALL_NUMBERS
    draft.shapes = [some_shape(draft.random)]
    draft.draw_attributes(draft.shapes[0])
    if draft.has_input(1) and draft.random.random() < 0.5:
        draft.arrays[1] = np.array(draft.random.choice((0.0, 0.3)), np.float32)
    draft.outputs = draft.random.choice((1, 1, 1, 2))


def grid_sample(draft: Draft) -> None:
    shape = picture(draft.random)
    sizes = tuple(draft.random.randint(1, 5) for _ in shape[2:])
    draft.shapes = [shape, (shape[0], *sizes, len(sizes))]
    draft.draw_attributes(shape)


def cumulated(draft: Draft) -> None:
    draft.shapes = [some_shape(draft.random, 1)]
    draft.draw_attributes(draft.shapes[0])
    integers(draft, 1, axis(draft.random, draft.shapes[0]), draft.random.choice((np.int64, np.int32)))


def einsum(draft: Draft) -> None:
    random = draft.random
    sizes = {letter: random.randint(1, 4) for letter in "abcdi"}
    terms = ["".join(random.sample("abcd", random.randint(1, 3))) for _ in range(random.choice((1, 2, 2, 3)))]
    letters = sorted({letter for term in terms for letter in term})
    result = "".join(random.sample(letters, random.randint(0, len(letters))))
    dots = random.random() < 0.3
    repeated = random.random() < 0.1
    terms = [term + (term[0] if repeated and at == 0 else "") for at, term in enumerate(terms)]
    head = "..." if dots else ""
    outer = some_shape(random, 1, 2) if dots else ()
    right = f"->{head}{result}" if random.random() < 0.8 else ""
    gap = random.choice(("", " "))
    draft.attributes = {"equation": f",{gap}".join(head + term for term in terms) + right}
    draft.shapes = [
        (*(narrowed(random, outer) if dots and at else outer), *(sizes[letter] for letter in term))
        for at, term in enumerate(terms)
    ]


def suppression(draft: Draft) -> None:
    """Draw random boxes, or boxes on a grid, with many overlaps equal to the threshold."""
    random, generator = draft.random, np.random.default_rng(draft.random.randrange(1 << 30))
    batch, classes, count = random.choice((1, 2)), random.choice((1, 3)), random.choice((1, 2, 5, 30))
    corners, sizes = generator.random((batch, count, 2)) * 10, generator.random((batch, count, 2)) * 4 + 0.1
    if random.random() < 0.5:
        corners, sizes = np.round(corners / 3), np.ceil(sizes / 2)
    boxes = np.concatenate([corners, corners + sizes], 2)
    scores = np.round(generator.random((batch, classes, count)), random.choice((1, 6)))
    draft.shapes = [boxes.shape, scores.shape]
    draft.drawn = {0: boxes.astype(np.float32), 1: scores.astype(np.float32)}
    draft.arrays = {
        2: np.array(random.choice((1, 3, 50)), np.int64),
        3: np.array(random.choice((0.0, 0.25, 0.3, 0.5, 0.7, 1.0)), np.float32),
        4: np.array(random.choice((0.0, 0.4)), np.float32),
    }
    draft.attributes = {"center_point_box": random.choice((0, 1))}


RECIPES: dict[str, Callable[[Draft], None]] = {
    name: recipe
    for names, recipe in (
        (
            "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Flatten Floor HardSigmoid "
            "HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shape Sigmoid Sign "
            "Sin Sinh Size Softsign Sqrt Tan Tanh Transpose",
            unary,
        ),
        ("Gelu", finite),
        ("Cast", cast),
        ("Softmax LogSoftmax ArgMax ArgMin LpNormalization", ranked),
        ("GlobalAveragePool GlobalMaxPool LRN MeanVarianceNormalization", whole_picture),
        ("Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Mul Or Sub Where Xor", broadcast),
        ("Pow", power),
        ("Max Min Mean Sum", variadic),
        ("PRelu", prelu),
        ("Clip", clip),
        ("AveragePool MaxPool", window),
        ("Conv ConvTranspose", convolution),
        ("BatchNormalization InstanceNormalization", per_channel),
        ("GroupNormalization", group_norm),
        ("LayerNormalization", layer_norm),
        (
            "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
            "ReduceSumSquare",
            reduction,
        ),
        ("GRU LSTM RNN", recurrent),
        ("MatMul", matmul),
        ("Gemm", gemm),
        ("Reshape", movements.reshape),
        ("Squeeze Unsqueeze", movements.squeeze),
        ("Split", movements.split),
        ("Expand", movements.expand),
        ("Tile", movements.tile),
        ("Trilu", movements.trilu),
        ("Slice", movements.slices),
        ("Pad", movements.pad),
        ("Gather GatherElements", movements.gather),
        ("GatherND", movements.gather_nd),
        ("ScatterElements", movements.scatter_elements),
        ("ScatterND", movements.scatter_nd),
        ("Concat", movements.concat),
        ("DepthToSpace SpaceToDepth", movements.blocks),
        ("Resize", movements.resize),
        ("Upsample", movements.upsample),
        ("QuantizeLinear", quantization.quantize),
        ("DequantizeLinear", quantization.dequantize),
        ("Dropout", dropout),
        ("GridSample", grid_sample),
        ("CumSum", cumulated),
        ("NonZero", ranked),
        ("NonMaxSuppression", suppression),
        ("Einsum", einsum),
    )
    for name in names.split()
}
