"""Random values for every attribute, by name, or by op and name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from onnx import TensorProto

Shape = tuple[int, ...]
Value = object
Choice = Callable[[Random, Shape], Value]
"""Function that draws a value, from the shape of a node's first input."""

FLAG = (0, 1)


def one_of(*values: Value) -> Choice:
    return lambda random, shape: random.choice(values)


def axis(random: Random, shape: Shape) -> int:
    return random.randrange(-len(shape), len(shape)) if shape else 0


def axes(random: Random, shape: Shape) -> Sequence[int]:
    """Draw some axes in any order, some counted from the end."""
    chosen = random.sample(range(len(shape)), random.randint(0, len(shape)))
    return [position - random.choice((0, len(shape))) for position in chosen]


def spatial(*values: int, times: int = 1) -> Choice:
    """Draw a number for each dimension after [N, C]; for pads twice: all begins, then all ends."""
    return lambda random, shape: [random.choice(values) for _ in range(times * max(len(shape) - 2, 0))]


def _permutation(random: Random, shape: Shape) -> Sequence[int]:
    return random.sample(range(len(shape)), len(shape))


def _ones_squeezed(random: Random, shape: Shape) -> Sequence[int]:
    return [at - random.choice((0, len(shape))) for at, size in enumerate(shape) if size == 1 and random.random() < 0.7]


def _unsqueezed(random: Random, shape: Shape) -> Sequence[int]:
    added = random.randint(1, 2)
    return [at - random.choice((0, len(shape) + added)) for at in random.sample(range(len(shape) + added), added)]


def _pads(random: Random, shape: Shape) -> Sequence[int]:
    return [random.choice((0, 0, 1, 2, -1)) for _ in range(2 * len(shape))]


def _scales(random: Random, shape: Shape) -> Sequence[float]:
    factors = (1.0, 2.0, 3.0) if random.random() < 0.5 else (1.0, 2.0, 1.5, 2.6, 1.25)
    return [1.0 if at < 2 and random.random() < 0.9 else random.choice(factors) for at in range(len(shape))]


def _begins(random: Random, shape: Shape) -> Sequence[int]:
    return [random.choice((0, 0, 1, -1, -2)) for _ in shape]


def _ends(random: Random, shape: Shape) -> Sequence[int]:
    return [random.choice((size, size, size - 1 or 1, -1, 100)) for size in shape]


def _split(random: Random, shape: Shape) -> Sequence[int]:
    size = random.choice(shape or (1,))
    first = random.randint(1, size)
    return [part for part in (first, size - first) if part]


CHOICES: dict[str, Choice] = {
    "activation_alpha": one_of([0.3]),
    "activation_beta": one_of([0.4]),
    "activations": one_of(["Tanh"], ["Relu"], ["Sigmoid"]),
    "align_corners": one_of(*FLAG),
    "allowzero": one_of(*FLAG),
    "alpha": one_of(0.01, 0.2, 0.5, 1.0, 1.7, -0.5, 0.0),
    "antialias": one_of(*FLAG),
    "approximate": one_of("none", "tanh"),
    "auto_pad": one_of("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "axes": axes,
    "axis": axis,
    "batch_dims": one_of(0, 1, 2),
    "beta": one_of(0.0, 0.3, 0.5, 0.75, 1.0, 2.0),
    "bias": one_of(1.0, 0.5, 1.5, 2.0),
    "block_size": one_of(0, 1, 2, 3),
    "blocksize": one_of(1, 2, 3),
    "reduction": one_of("none", "none", "add", "mul", "max", "min"),
    "ceil_mode": one_of(*FLAG),
    "clip": one_of(0.2, 1.0, 5.0),
    "coordinate_transformation_mode": one_of(
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
        "tf_crop_and_resize",
    ),
    "count_include_pad": one_of(*FLAG),
    "cubic_coeff_a": one_of(-0.75, -0.5),
    "detect_negative": one_of(*FLAG),
    "detect_positive": one_of(*FLAG),
    "dilations": spatial(1, 1, 2, 3),
    "direction": one_of("forward", "reverse", "bidirectional"),
    "end": one_of(0, 1, 2, 9, -1, -2, -9),
    "ends": _ends,
    "epsilon": one_of(1e-5, 1e-2, 0.5, 0.0),
    "exclude_outside": one_of(*FLAG),
    "exclusive": one_of(*FLAG),
    "extrapolation_value": one_of(0.0, 7.0, -1.5),
    "gamma": one_of(1.05, 0.5, 2.0),
    "input_forget": one_of(*FLAG),
    "keep_aspect_ratio_policy": one_of("stretch", "not_larger", "not_smaller"),
    "keepdims": one_of(*FLAG),
    "kernel_shape": spatial(1, 2, 3, 4),
    "layout": one_of(*FLAG),
    "linear_before_reset": one_of(*FLAG),
    "max": one_of(0.5, 1.0, -0.5, 3.4028234663852886e38),
    "min": one_of(-1.0, 0.0, 0.7, -3.4028234663852886e38),
    "momentum": one_of(0.9, 0.5),
    "nearest_mode": one_of("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "noop_with_empty_axes": one_of(*FLAG),
    "num_outputs": one_of(1, 2, 3),
    "output_dtype": one_of(TensorProto.UINT8),
    "output_padding": spatial(0, 0, 1),
    "output_sequence": one_of(*FLAG),
    "output_shape": spatial(4, 7, 10),
    "p": one_of(1, 2),
    "padding_mode": one_of("zeros", "border", "reflection"),
    "pads": spatial(0, 0, 1, 2, times=2),
    "perm": _permutation,
    "precision": one_of(TensorProto.FLOAT, TensorProto.FLOAT16),
    "ratio": one_of(0.0, 0.3, 0.5),
    "reverse": one_of(*FLAG),
    "round_mode": one_of("up", "down", "nearest"),
    "saturate": one_of(*FLAG),
    "scales": _scales,
    "seed": one_of(3),
    "select_last_index": one_of(*FLAG),
    "size": one_of(1, 2, 3, 4, 5, 6, 7),
    "spatial": one_of(*FLAG),
    "split": _split,
    "start": one_of(0, 1, 2, 9, -1, -2, -9),
    "starts": _begins,
    "stash_type": one_of(TensorProto.FLOAT),
    "storage_order": one_of(*FLAG),
    "strides": spatial(1, 2, 3),
    "to": one_of(*(number for name, number in TensorProto.DataType.items() if name != "UNDEFINED")),
    "training_mode": one_of(*FLAG),
    "transA": one_of(*FLAG),
    "transB": one_of(*FLAG),
    "upper": one_of(*FLAG),
    "value": one_of(0.0, 1.5, -2.0),
}

OWN_CHOICES: dict[tuple[str, str], Choice] = {
    ("DepthToSpace", "mode"): one_of("DCR", "CRD"),
    ("GridSample", "mode"): one_of("linear", "cubic", "nearest", "bilinear", "bicubic"),
    ("GRU", "activations"): one_of(["Sigmoid", "Tanh"], ["Relu", "HardSigmoid"], ["Sigmoid", "Affine"]),
    ("LSTM", "activations"): one_of(["Sigmoid", "Tanh", "Tanh"], ["HardSigmoid", "Relu", "Tanh"]),
    ("Flatten", "axis"): lambda random, shape: random.randint(-len(shape), len(shape)),
    ("Pad", "mode"): one_of("constant", "reflect", "edge", "wrap"),
    ("Pad", "pads"): _pads,
    ("Resize", "mode"): one_of("nearest", "linear", "cubic"),
    ("SpaceToDepth", "mode"): one_of("DCR", "CRD"),
    ("Squeeze", "axes"): _ones_squeezed,
    ("Unsqueeze", "axes"): _unsqueezed,
    ("Upsample", "mode"): one_of("nearest", "linear"),
}


def choice_of(op_type: str, name: str) -> Choice:
    """Return the function that draws an attribute; a new one needs a row in a table above."""
    return OWN_CHOICES.get((op_type, name)) or CHOICES[name]
