"""Runs an adapter IR model with numpy, slowly and obviously: the oracle for converters and passes.

Floating-point values are held as float64 while an operation computes and rounded to its output's type afterwards, so
that a device may be compared against this at the tolerance of its own arithmetic. An operation that looks at pictures
(see `_IMAGE`) is given `[N, C, H, W]` whatever the layout of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import erf as scalar_erf
from typing import Any

import ml_dtypes  # teaches numpy.dtype the names bfloat16, int4 and float8_…
import numpy as np

from nnadapter.ir.definition import mathematics
from nnadapter.ir.definition.further import FURTHER_FUNCTIONS
from nnadapter.ir.definition.quantized import quantized_function
from nnadapter.ir.definition.sequence import SEQUENCE_FUNCTIONS
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, DataType, Layout

_Function = Callable[..., Any]


def interpret(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """Run `model` once; `inputs` and the result are in the order of `model.inputs` and `model.outputs`."""
    values: dict[int, Array] = {
        index: operand.value for index, operand in enumerate(model.operands) if operand.value is not None
    }
    for index, given in zip(model.inputs, inputs, strict=True):
        _expect(model, index, np.asarray(given))
        values[index] = np.asarray(given)
    for operation in model.operations:
        arguments = [None if index == ABSENT else values[index] for index in operation.inputs]
        for index, result in zip(operation.outputs, _compute(model, operation, arguments), strict=True):
            values[index] = _cast(result, model.operands[index].type.dtype)
            _expect(model, index, values[index])
    return [values[index] for index in model.outputs]


def _expect(model: Model, index: int, value: Array) -> None:
    operand = model.operands[index]
    assert value.shape == operand.type.dimensions, f"{operand.name}: {value.shape}, the model says {operand.type}"
    assert value.dtype == np.dtype(operand.type.dtype), f"{operand.name}: {value.dtype}, the model says {operand.type}"


def _compute(model: Model, operation: Operation, arguments: list[Array | None]) -> list[Array]:
    attributes = dict(operation.attributes)
    fuse_code, parameters = attributes.pop("fuse_code", "none"), attributes.pop("fuse_parameters", ())
    wide: list[Any] = list(arguments) if operation.type == "BIT_CAST" else [_widen(argument) for argument in arguments]
    channels_last = model.operands[operation.inputs[0]].type.layout is Layout.NHWC and operation.type in _IMAGE
    if channels_last:
        wide[0] = np.transpose(wide[0], (0, 3, 1, 2))
    with np.errstate(all="ignore"):
        activation = _ACTIVATIONS.get(str(fuse_code), _as_it_is)
        function: Any = quantized_function(model, operation, _FUNCTIONS.get(operation.type))
        given: tuple[Any, ...] = parameters if isinstance(parameters, tuple) else ()
        results = function(*wide, finish=lambda result: activation(result, *given), **attributes)
    return [np.transpose(result, (0, 2, 3, 1)) for result in results] if channels_last else results


def _as_it_is(result: Array) -> Array:
    return result


def _widen(value: Array | None) -> Any:
    if value is None or not DataType(value.dtype.name).is_floating:
        return value
    return value.astype(np.float64)


def _cast(value: Array, dtype: DataType) -> Array:
    value, target = np.asarray(value), np.dtype(dtype)
    with np.errstate(all="ignore"):
        if dtype.value.startswith("float8"):  # ONNX's saturate=1: what is too large becomes the largest number
            limit = float(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
            value = np.clip(value, -limit, limit)
        return np.asarray(value.astype(target))


# --- elementwise -----------------------------------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _erf(x: Array) -> Any:
    return np.vectorize(scalar_erf, otypes=[np.float64])(x)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: Array, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Any:
    return np.clip(alpha * x + beta, 0, 1)


def _leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * x, x)


def _clip(x: Array, min: float, max: float) -> Any:  # noqa: A002  the attributes' names
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        lowest, highest = (int(np.clip(value, float(limits.min), float(limits.max))) for value in (min, max))
        return np.minimum(np.maximum(x, np.array(_bounded(lowest, limits), x.dtype)), _bounded(highest, limits))
    return np.minimum(np.maximum(x, min), max)


def _bounded(value: int, limits: Any) -> int:
    return int(min(max(value, int(limits.min)), int(limits.max)))


def _div(x: Array, y: Array) -> Any:
    if x.dtype.kind not in "iu":
        return x / y
    quotient = x // y  # rounds down; ONNX rounds to zero
    return quotient + ((quotient < 0) & (quotient * y != x)).astype(x.dtype)


def _pow(x: Array, exponent: Array) -> Any:
    if x.dtype.kind in "iu" and exponent.dtype.kind in "iu" and np.all(exponent >= 0):
        return x ** exponent.astype(x.dtype)
    return np.power(x.astype(np.float64), exponent.astype(np.float64))


def _mod(x: Array, y: Array, fmod: bool) -> Array:
    return np.fmod(x, y) if fmod else np.mod(x, y)


def _sum(*inputs: Array) -> Array:
    total = inputs[0]
    for value in inputs[1:]:
        total = total + value
    return total


def _to(x: Array, to: str) -> Array:
    target = DataType(to)
    return x != 0 if target is DataType.BOOL else _cast(x, target)


# --- matrices, normalization, reduction ------------------------------------------------------------------------------


def _fully_connected(x: Array, weight: Array, bias: Array | None = None) -> Array:
    return x @ weight.T if bias is None else x @ weight.T + bias


def _mat_mul(x: Array, y: Array, transpose_x: bool, transpose_y: bool) -> Any:
    return np.matmul(x.swapaxes(-1, -2) if transpose_x else x, y.swapaxes(-1, -2) if transpose_y else y)


def _per_channel(values: Array, rank: int) -> Array:
    return values.reshape(-1, *[1] * (rank - 2)) if rank > 1 else values


def _batch_normalization(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float) -> Array:
    scale, bias, mean, variance = (_per_channel(value, x.ndim) for value in (scale, bias, mean, variance))
    return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


def _standardize(x: Array, axes: tuple[int, ...], epsilon: float) -> Any:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)


def _layer_normalization(x: Array, scale: Array, bias: Array | None = None, *, axis: int, epsilon: float) -> Any:
    result = _standardize(x, tuple(range(axis % x.ndim, x.ndim)), epsilon) * scale
    return result if bias is None else result + bias


def _instance_normalization(x: Array, scale: Array, bias: Array, epsilon: float) -> Any:
    result = _standardize(x, tuple(range(2, x.ndim)), epsilon)
    return result * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


def _local_response(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    sums = np.zeros_like(x)
    for channel in range(x.shape[1]):
        first, last = max(0, channel - (size - 1) // 2), min(x.shape[1] - 1, channel + size // 2)
        sums[:, channel] = (x[:, first : last + 1] ** 2).sum(1)
    return x / (bias + alpha / size * sums) ** beta


def _softmax(x: Array, axis: int) -> Any:
    raised = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return raised / raised.sum(axis, keepdims=True)


def _log_softmax(x: Array, axis: int) -> Any:
    shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def _reduce(function: _Function) -> _Function:
    def reduced(x: Array, axes: Any, keepdims: bool) -> Array:
        return np.asarray(function(x, axis=tuple(axes), keepdims=keepdims))

    return reduced


def _mean(x: Array, axis: Any, keepdims: bool) -> Any:
    return np.trunc(x.mean(axis, keepdims=keepdims)) if x.dtype.kind in "iu" else x.mean(axis, keepdims=keepdims)


def _largest(x: Array, axis: Any, keepdims: bool) -> Any:
    return x.max(axis, keepdims=keepdims, initial=-np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min)


def _smallest(x: Array, axis: Any, keepdims: bool) -> Any:
    return x.min(axis, keepdims=keepdims, initial=np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max)


def _arg(function: _Function) -> _Function:
    def found(x: Array, axis: int, keepdims: bool, select_last_index: bool) -> Array:
        if select_last_index:
            return np.asarray(x.shape[axis] - 1 - function(np.flip(x, axis), axis, keepdims=keepdims))
        return np.asarray(function(x, axis, keepdims=keepdims))

    return found


# --- movement, indexing, resizing ------------------------------------------------------------------------------------


def _split(x: Array, axis: int, split: Any) -> list[Array]:
    return np.split(x, np.cumsum(split)[:-1], axis)


def _slice(x: Array, starts: Any, ends: Any, axes: Any, steps: Any) -> Array:
    where = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        where[axis] = slice(start, end, step)
    return x[tuple(where)]


def _gather_elements(x: Array, indices: Array, axis: int) -> Array:
    reached = tuple(slice(size) if other != axis else slice(None) for other, size in enumerate(indices.shape))
    return np.take_along_axis(x[reached], np.where(indices < 0, indices + x.shape[axis], indices), axis)


def _pad(x: Array, mode: str, pads: Any, value: float) -> Any:
    if x.ndim == 0:
        return x
    begins, ends = pads[: x.ndim], pads[x.ndim :]
    kept = tuple(
        slice(max(0, -begin), size - max(0, -end)) for begin, end, size in zip(begins, ends, x.shape, strict=True)
    )
    width = [(max(0, begin), max(0, end)) for begin, end in zip(begins, ends, strict=True)]
    extra = {"constant_values": np.array(value).astype(x.dtype)} if mode == "constant" else {}
    return np.pad(x[kept], width, mode=mode, **extra)  # type: ignore[call-overload]


def _cum_sum(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        total = total - x
    return np.flip(total, axis) if reverse else total


def _top_k(x: Array, k: int, axis: int, largest: bool, sorted: bool) -> list[Array]:  # noqa: A002
    if largest:  # of equals the lower index comes first, which a reversed stable sort of the flipped axis gives
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    chosen = np.take(order, np.arange(k), axis)
    return [np.take_along_axis(x, chosen, axis), chosen]


_ACTIVATIONS: Mapping[str, _Function] = {
    "relu": lambda x: np.maximum(x, 0),
    "clip": _clip,
    "sigmoid": _sigmoid,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda x, alpha, beta: x * _hard_sigmoid(x, alpha, beta),
    "tanh": np.tanh,
    "leaky_relu": _leaky_relu,
    "gelu": _gelu,
    "gelu_tanh": lambda x: _gelu(x, "tanh"),
    "swish": lambda x: x * _sigmoid(x),
}

_IMAGE = frozenset(
    {
        "CONV_2D",
        "CONV_2D_TRANSPOSE",
        "MAX_POOL_2D",
        "AVERAGE_POOL_2D",
        "BATCH_NORMALIZATION",
        "INSTANCE_NORMALIZATION",
        "LOCAL_RESPONSE_NORMALIZATION",
        "DEPTH_TO_SPACE",
        "SPACE_TO_DEPTH",
    }
)

_FUNCTIONS: Mapping[str, _Function] = {
    "ABS": np.abs,
    "SIGN": np.sign,
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "EXP": np.exp,
    "LOG": np.log,
    "SQRT": np.sqrt,
    "SIN": np.sin,
    "COS": np.cos,
    "TANH": np.tanh,
    "EQUAL": np.equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "NEG": np.negative,
    "ROUND": np.rint,
    "RECIPROCAL": lambda x: 1 / x,
    "ERF": _erf,
    "SIGMOID": _sigmoid,
    "SOFTPLUS": _softplus,
    "SOFTSIGN": lambda x: x / (1 + np.abs(x)),
    "MISH": lambda x: x * np.tanh(_softplus(x)),
    "RELU": lambda x: np.maximum(x, 0),
    "SWISH": lambda x, alpha: x * _sigmoid(alpha * x),
    "GELU": _gelu,
    "HARD_SIGMOID": _hard_sigmoid,
    "HARD_SWISH": lambda x, alpha, beta: x * _hard_sigmoid(x, alpha, beta),
    "LEAKY_RELU": _leaky_relu,
    "ELU": lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x),
    "SELU": lambda x, alpha, gamma: gamma * np.where(x <= 0, alpha * np.expm1(x), x),
    "CLIP": _clip,
    "NOT": np.logical_not,
    "ASSIGN": lambda x: x,
    "CAST": _to,
    "PRELU": lambda x, slope: np.where(x < 0, slope * x, x),
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": _div,
    "POW": _pow,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "MOD": _mod,
    "AND": np.logical_and,
    "OR": np.logical_or,
    "XOR": np.logical_xor,
    "SUM": _sum,
    "WHERE": np.where,
    "FULLY_CONNECTED": _fully_connected,
    "MAT_MUL": _mat_mul,
    "BATCH_NORMALIZATION": _batch_normalization,
    "LAYER_NORMALIZATION": _layer_normalization,
    "INSTANCE_NORMALIZATION": _instance_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": _log_softmax,
    "REDUCE_MEAN": _reduce(_mean),
    "REDUCE_SUM": _reduce(np.sum),
    "REDUCE_MAX": _reduce(_largest),
    "REDUCE_MIN": _reduce(_smallest),
    "REDUCE_PROD": _reduce(np.prod),
    "ARG_MAX": _arg(np.argmax),
    "ARG_MIN": _arg(np.argmin),
    "RESHAPE": lambda x, shape: x.reshape(shape),
    "TRANSPOSE": lambda x, perm, output_layout: x.transpose(perm),
    "EXPAND": lambda x, shape: np.broadcast_to(x, shape),
    "TILE": lambda x, repeats: np.tile(x, repeats),
    "CONCAT": lambda *inputs, axis: np.concatenate(inputs, axis),
    "SPLIT": _split,
    "SLICE": _slice,
    "GATHER": lambda x, indices, axis: np.take(x, indices, axis),
    "GATHER_ELEMENTS": _gather_elements,
    "PAD": _pad,
    "CUM_SUM": _cum_sum,
    "TOP_K": _top_k,
    **mathematics.FUNCTIONS,
    **FURTHER_FUNCTIONS,
    **SEQUENCE_FUNCTIONS,
}
"""One function per operation; what is missing here is not in the schema table."""
