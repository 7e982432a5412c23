"""Reference implementations: elementwise and bitwise operations, and fused activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import erf as scalar_erf
from typing import Any

import ml_dtypes  # registers bfloat16, int4 and float8_… with numpy
import numpy as np

from nnadapter.ir.operand import Array, DataType


def cast(value: Array, dtype: DataType) -> Array:
    """Convert to another data type."""
    value, target = np.asarray(value), np.dtype(dtype)
    with np.errstate(all="ignore"):
        if dtype.value.startswith("float8"):  # ONNX's saturate=1
            limit = float(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
            value = np.clip(value, -limit, limit)
        return np.asarray(value.astype(target))


def _to(x: Array, to: str) -> Array:
    target = DataType(to)
    return x != 0 if target is DataType.BOOL else cast(x, target)


def _mod(xp: Any, x: Any, y: Any, fmod: bool) -> Any:
    return xp.fmod(x, y) if fmod else xp.mod(x, y)


def _celu(xp: Any, x: Any, alpha: float) -> Any:
    return xp.maximum(0, x) + xp.minimum(0, alpha * xp.expm1(x / alpha))


def _is_inf(xp: Any, x: Any, detect_negative: bool, detect_positive: bool) -> Any:
    return ((x == xp.inf) & detect_positive) | ((x == -xp.inf) & detect_negative)


def hard_sigmoid(xp: Any, x: Any, alpha: float, beta: float) -> Any:
    """Return alpha * x + beta, clipped to [0, 1]."""
    return xp.clip(alpha * x + beta, 0, 1)


def elu(xp: Any, x: Any, alpha: float) -> Any:
    """Return x for x >= 0, otherwise alpha * (exp(x) - 1)."""
    return xp.where(x < 0, alpha * xp.expm1(x), x)


def softplus(xp: Any, x: Any) -> Any:
    """Return log(1 + exp(x)), without overflow."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))


def softsign(xp: Any, x: Any) -> Any:
    """Return x / (1 + |x|)."""
    return x / (1 + xp.abs(x))


def leaky_relu(xp: Any, x: Any, alpha: float) -> Any:
    """Return x for x >= 0, otherwise alpha * x."""
    return xp.where(x < 0, alpha * x, x)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _erf(x: Array) -> Any:
    return np.vectorize(scalar_erf, otypes=[np.float64])(x)


def _gelu(x: Array, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


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
    quotient = x // y  # `//` rounds down, ONNX towards zero
    return quotient + ((quotient < 0) & (quotient * y != x)).astype(x.dtype)


def _pow(x: Array, exponent: Array) -> Any:
    if x.dtype.kind in "iu" and exponent.dtype.kind in "iu" and np.all(exponent >= 0):
        return x ** exponent.astype(x.dtype)
    return np.power(x.astype(np.float64), exponent.astype(np.float64))


def _shrink(x: Array, bias: float, lambd: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _shift(x: Array, y: Array, direction: str) -> Array:
    """Shift unbounded Python integers, and return the low bits."""
    bits = 8 * x.dtype.itemsize
    shifted = []
    for number, count in np.broadcast(x, y):
        number, count = int(number), int(count)
        beyond = not 0 <= count < bits
        sign_fill = -1 if number < 0 and direction == "right" else 0
        if beyond:
            shifted.append(sign_fill)
        else:
            shifted.append(number << count if direction == "left" else number >> count)
    low = np.array([number % 2**bits for number in shifted], _BITS[x.dtype.itemsize])
    return low.view(x.dtype).reshape(np.broadcast_shapes(x.shape, y.shape))


def bit_cast(x: Array, to: Any) -> Any:
    """Reinterpret the bytes of `x` as another type; for bool, every nonzero byte becomes True."""
    if to == np.bool_:
        return x != 0
    return np.frombuffer(x.tobytes(), to).reshape(x.shape)


NAMES = """
ABS abs, ACOS arccos, ACOSH arccosh, ADD add, AND logical_and, ASIN arcsin, ASINH arcsinh, ATAN arctan, ATANH arctanh,
BITWISE_AND bitwise_and, BITWISE_NOT bitwise_not, BITWISE_OR bitwise_or, BITWISE_XOR bitwise_xor, CEIL ceil, COS cos,
COSH cosh, EQUAL equal, EXP exp, FLOOR floor, GREATER greater, GREATER_EQUAL greater_equal, IS_NAN isnan, LESS less,
LESS_EQUAL less_equal, LOG log, MAX maximum, MIN minimum, MUL multiply, NEG negative, NOT logical_not, NOT_EQUAL
not_equal, OR logical_or, ROUND rint, SIGN sign, SIN sin, SINH sinh, SQRT sqrt, SQUARE square, SUB subtract, TAN tan,
TANH tanh, WHERE where, XOR logical_xor
"""
"""Operation types and the array namespace functions that implement them."""

SHARED: Mapping[str, Callable[..., Any]] = {
    "ASSIGN": lambda xp, x: x,
    "CELU": _celu,
    "ELU": elu,
    "HARD_SIGMOID": hard_sigmoid,
    "HARD_SWISH": lambda xp, x, alpha, beta: x * hard_sigmoid(xp, x, alpha, beta),
    "IS_INF": _is_inf,
    "LEAKY_RELU": leaky_relu,
    "MISH": lambda xp, x: x * xp.tanh(softplus(xp, x)),
    "MOD": _mod,
    "PRELU": lambda xp, x, slope: xp.where(x < 0, slope * x, x),
    "RECIPROCAL": lambda xp, x: 1 / x,
    "RELU": lambda xp, x: xp.maximum(x, 0),
    "SELU": lambda xp, x, alpha, gamma: gamma * xp.where(x <= 0, alpha * xp.expm1(x), x),
    "SOFTPLUS": softplus,
    "SOFTSIGN": softsign,
    "SUM": lambda xp, *inputs: reduce(xp.add, inputs),
    "THRESHOLDED_RELU": lambda xp, x, alpha: xp.where(x > alpha, x, 0),
}
"""Operation type -> function over an array namespace xp, numpy or jax.numpy."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ERF": _erf,
    "SIGMOID": sigmoid,
    "SWISH": lambda x, alpha: x * sigmoid(alpha * x),
    "GELU": _gelu,
    "CLIP": _clip,
    "CAST": _to,
    "DIV": _div,
    "POW": _pow,
    "RSQRT": lambda x: x**-0.5,
    "FLOOR_DIV": lambda x, y: x // y,
    "SHRINK": _shrink,
    "SWIGLU": lambda gate, value, alpha: gate / (1 + np.exp(-alpha * gate)) * value,
    "BIT_SHIFT": _shift,
    "BIT_CAST": lambda x, to: bit_cast(x, np.dtype(to)),
}

DOCS = """\
# *
input: The operand, x in the formula.
alpha: Slope of the line.
beta: Value of the line at 0.
x: The first operand.
y: The second operand; broadcast against `x`.
example: [-2.0, -0.5, 0.0, 0.5, 2.0]
# ABS: The absolute value.
| |x|
- The smallest signed integer has no positive counterpart and does not change.
# NEG: The negated value.
| -x
- Unsigned integers wrap around: 1 becomes the largest.
# SIGN: The sign.
| -1 if x < 0, 0 if x = 0, 1 if x > 0
- NaN gives NaN.
# FLOOR: The largest whole number not above the value.
| floor(x)
- Integers do not change.
# CEIL: The smallest whole number not below the value.
| ceil(x)
- Integers do not change.
# ROUND: The nearest whole number.
| rint(x)
- Halves round to even: 0.5 and -0.5 give 0, 1.5 and 2.5 give 2. C's `round` differs.
example: [-2.5, -0.5, 0.5, 1.5, 2.4]
# EXP: The exponential function.
| exp(x)
# LOG: The natural logarithm.
| log(x)
- 0 gives -inf, negative numbers NaN.
example: [0.0, 0.5, 1.0, 10.0]
# SQRT: The square root.
| sqrt(x)
- Negative numbers give NaN.
example: [0.0, 0.25, 2.0, 9.0]
# RECIPROCAL: One over the value.
| 1 / x
- 0 gives inf, -0 gives -inf.
example: [-2.0, 0.0, 0.5, 4.0]
# ERF: The error function.
| erf(x) = 2 / sqrt(pi) * (integral of exp(-t * t) for t from 0 to x)
# SIN: The sine of an angle in radians.
| sin(x)
# COS: The cosine of an angle in radians.
| cos(x)
# TANH: The hyperbolic tangent.
| tanh(x) = (exp(x) - exp(-x)) / (exp(x) + exp(-x))
# SIGMOID: The logistic function.
| 1 / (1 + exp(-x))
- Avoid overflow of exp(-x): use exp(x) / (1 + exp(x)) below 0.
# SOFTPLUS: A smooth form of RELU.
| log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))
- Avoid overflow of exp(x): use the second form.
# SOFTSIGN: A sigmoid without an exponential.
| x / (1 + |x|)
# MISH: The Mish activation.
| x * tanh(log(1 + exp(x)))
- Avoid overflow of exp(x), see SOFTPLUS.
# RELU: The value, or 0 if it is negative.
| max(x, 0)
- NaN gives NaN.
- With quantized operand and result, it compares real values: 0 is the zero point.
- The pass fuse_activation turns it into a fuse code of its producer.
# SWISH: The Swish activation; SiLU for alpha 1.
| x / (1 + exp(-alpha * x))
alpha: Factor of x inside the sigmoid.
- The fuse code `swish` has alpha 1 and no parameter.
# HARD_SIGMOID: A piecewise linear sigmoid: a line clipped to 0 and 1.
| max(0, min(1, alpha * x + beta))
- The default alpha is 0.2 as in ONNX; others use 1/6.
# HARD_SWISH: The value times its hard sigmoid.
| x * max(0, min(1, alpha * x + beta))
- The default alpha is 1/6 here, and 0.2 in HARD_SIGMOID.
# LEAKY_RELU: The value, scaled by alpha below 0.
| x if x >= 0, alpha * x if x < 0
alpha: Slope below 0.
- alpha may be greater than 1, or negative: max(x, alpha * x) is then a different function.
# ELU: The value, with an exponential below 0.
| x if x >= 0, alpha * (exp(x) - 1) if x < 0
alpha: The result approaches -alpha far below 0.
# SELU: ELU, scaled.
| gamma * x if x > 0, gamma * alpha * (exp(x) - 1) if x <= 0
alpha: Factor of the exponential part.
gamma: Factor of both parts.
# NOT: The logical negation.
| not x
input: Truth values.
example: [True, False]
# CLIP: The value, limited to a range.
| min(max(x, min), max)
min: The lower limit.
max: The upper limit.
- With min above max the result is max everywhere. NaN stays NaN.
- Limits are floats. For integers they are truncated and clipped to the data type's range.
- ONNX's Clip has limits as inputs; computed ones become MAX and MIN.
example: [-2.0, -0.5, 0.0, 0.5, 2.0], min=-1.0, max=1.0
# ACOS: The inverse of the cosine, 0 to pi.
| acos(x)
- Outside -1 to 1 it gives NaN.
example: [-1.0, -0.5, 0.0, 0.5, 1.0]
# ACOSH: The inverse of the hyperbolic cosine, 0 or more.
| acosh(x) = log(x + sqrt(x * x - 1))
- Below 1 it gives NaN.
example: [1.0, 2.0, 10.0]
# ASIN: The inverse of the sine, -pi / 2 to pi / 2.
| asin(x)
- Outside -1 to 1 it gives NaN.
example: [-1.0, -0.5, 0.0, 0.5, 1.0]
# ASINH: The inverse of the hyperbolic sine.
| asinh(x) = log(x + sqrt(x * x + 1))
example: [-1.0, -0.5, 0.0, 0.5, 1.0]
# ATAN: The inverse of the tangent, -pi / 2 to pi / 2.
| atan(x)
example: [-1.0, -0.5, 0.0, 0.5, 1.0]
# ATANH: The inverse of the hyperbolic tangent.
| atanh(x) = 0.5 * log((1 + x) / (1 - x))
- -1 and 1 give -inf and inf; outside them it gives NaN.
example: [-0.5, 0.0, 0.9]
# COSH: The hyperbolic cosine.
| cosh(x) = (exp(x) + exp(-x)) / 2
example: [-1.0, -0.5, 0.0, 0.5, 1.0]
# SINH: The hyperbolic sine.
| sinh(x) = (exp(x) - exp(-x)) / 2
example: [-1.0, -0.5, 0.0, 0.5, 1.0]
# TAN: The tangent of an angle in radians.
| tan(x)
example: [-1.0, -0.5, 0.0, 0.5, 1.0]
# RSQRT: One over the square root.
| 1 / sqrt(x)
- 0 gives inf, negative numbers NaN.
example: [0.25, 1.0, 4.0]
# SQUARE: The value times itself.
| x * x
- Integers wrap around.
example: [-3.0, 0.5, 2.0]
# SHRINK: Values near 0 become 0, others move towards 0.
| x + bias if x < -lambd, x - bias if x > lambd, else 0
bias: Shift towards 0 outside the limits.
lambd: The limit.
- Both limits give 0.
- Integers are computed as reals, and the result is truncated.
example: [-2.0, -0.5, 0.0, 0.5, 2.0], bias=1.5, lambd=0.5
# THRESHOLDED_RELU: The value if above a threshold, otherwise 0.
| x if x > alpha, else 0
alpha: The threshold.
- The threshold gives 0.
example: [-1.0, -0.5, 0.0, 0.5, 1.0], alpha=0.5
# BITWISE_NOT: All bits inverted.
| ~x; -x - 1 for signed integers
input: The integers.
- For bool, use NOT.
example: int8([0, 1, -3])
# MAX: The larger of two values.
| max(x, y)
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- A NaN in either operand gives NaN.
- It has exactly two inputs; ONNX's Max takes any number.
example: [[1.0, -2.0], [3.0, 7.0]], [2.0, -2.0]
# MIN: The smaller of two values.
| min(x, y)
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- A NaN in either operand gives NaN.
- It has exactly two inputs; ONNX's Min takes any number.
example: [[1.0, -2.0], [3.0, 7.0]], [2.0, -2.0]
# AND: True if both are true.
| x and y
-> output: bool. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
example: [[True, True], [False, False]], [True, False]
# OR: True if at least one is true.
| x or y
-> output: bool. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
example: [[True, True], [False, False]], [True, False]
# XOR: True if exactly one is true.
| x != y
-> output: bool. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
example: [[True, True], [False, False]], [True, False]
# EQUAL: True if both are equal.
| x = y
-> output: bool. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- NaN equals nothing, not even NaN. 0 equals -0.
- For quantized operands, the integers are compared, regardless of scales.
example: [[1.0, -2.0], [3.0, 7.0]], [2.0, -2.0]
# NOT_EQUAL: True if the values differ.
| x != y
-> output: bool. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- NaN differs from everything, including NaN.
example: [1, 2, 3], [[1], [3]]
# GREATER: True if x is greater.
| x > y
-> output: bool. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- NaN gives false.
example: [[1.0, -2.0], [3.0, 7.0]], [2.0, -2.0]
# GREATER_EQUAL: True if x is greater or equal.
| x >= y
-> output: bool. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- NaN gives false.
example: [[1.0, -2.0], [3.0, 7.0]], [2.0, -2.0]
# LESS: True if x is less.
| x < y
-> output: bool. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- NaN gives false.
example: [[1.0, -2.0], [3.0, 7.0]], [2.0, -2.0]
# LESS_EQUAL: True if x is less or equal.
| x <= y
-> output: bool. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- NaN gives false.
example: [[1.0, -2.0], [3.0, 7.0]], [2.0, -2.0]
# BITWISE_AND: The bits set in both.
| x & y
x: The first integers.
y: The second integers; broadcast against `x`.
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy.
- Signed integers are in two's complement.
example: int8([12, 10, -1]), int8([10])
# BITWISE_OR: The bits set in at least one.
| x | y
x: The first integers.
y: The second integers; broadcast against `x`.
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy.
- Signed integers are in two's complement.
example: int8([12, 10, -1]), int8([10])
# BITWISE_XOR: The bits set in exactly one.
| x ^ y
x: The first integers.
y: The second integers; broadcast against `x`.
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy.
- Signed integers are in two's complement.
example: int8([12, 10, -1]), int8([10])
# ADD: The sum.
| activation(x + y)
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- Integers wrap around.
- Integers allow only the fuse codes `none`, `relu` and `clip`, with limits as in CLIP.
FLOPs: 1 per output element, plus the activation
example: [[1.0, -2.0], [3.0, -8.0]], [2.0, 4.0], fuse_code='relu'
# SUB: The difference.
| activation(x - y)
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- Integers wrap around.
- Integers allow only the fuse codes `none`, `relu` and `clip`, with limits as in CLIP.
FLOPs: 1 per output element, plus the activation
example: [[1.0, -2.0], [3.0, -8.0]], [2.0, 4.0], fuse_code='relu'
# MUL: The elementwise product.
| activation(x * y)
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- Integers wrap around.
- Integers allow only the fuse codes `none`, `relu` and `clip`, with limits as in CLIP.
FLOPs: 1 per output element, plus the activation
example: [[1.0, -2.0], [3.0, -8.0]], [2.0, 4.0], fuse_code='relu'
# DIV: The quotient.
| activation(x / y); for integers trunc(x / y)
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- Integers round toward 0: -7 / 2 = -3. FLOOR_DIV rounds down.
- Integers divided by 0 are undefined. Floating-point ones give inf, -inf or NaN.
- Integers allow only the fuse codes `none`, `relu` and `clip`, with limits as in CLIP.
FLOPs: 1 per output element, plus the activation
example: [[1.0, -2.0], [3.0, -8.0]], [2.0, 4.0], fuse_code='relu'
# GELU: The Gaussian error linear unit.
| none: 0.5 * x * (1 + erf(x / sqrt(2)))
| tanh: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))
approximate: `none`: exact, with erf. `tanh`: the usual approximation.
- The two forms differ in the fourth digit: they are not interchangeable.
FLOPs: 5 per output element, 9 with tanh
example: [-2.0, -0.5, 0.0, 0.5, 2.0], approximate='tanh'
# ASSIGN: The operand under another name.
| x
- Data type, layout and quantization do not change.
- The pass simplify removes it unless a model output needs its name.
# CAST: The values in another data type.
| x as `to`
- Floating-point numbers are truncated to integers (toward 0). Numbers that do not fit are undefined.
- Narrower integers keep the low bits. For bool, everything except 0 is true, including NaN.
- For float8, numbers that are too large become the largest finite one, as with ONNX's saturate = 1; for float16 and
  bfloat16 they become inf.
- Quantized operands: the integers are cast, and the result is not quantized. Use DEQUANTIZE for real values.
example: [-1.5, -0.5, 0.0, 2.7], to='int32'
# BIT_CAST: The same bytes, reinterpreted as another data type.
| the bits of x as `to`
input: Any operand.
to: The data type of the result, with as many bits as the input's.
-> output: The data type `to`; dimensions and layout of `input`.
- Values are not converted; use CAST for that.
- For bool, every byte except 0 is true.
- Byte order does not matter: both types have elements of one size.
example: [1.0, -2.0, 0.0], to='int32'
# BIT_SHIFT: Bits shifted left or right.
| left: the low bits of x * 2^y
| right: floor(x / 2^y)
x: The integers.
y: Number of bits; broadcast against `x`.
direction: `left`: towards higher bits. `right`: towards lower bits.
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy.
- A right shift extends the sign: -8 by 1 gives -4.
- A count that is negative, or at least the number of bits, gives 0; to the right, -1 for negative x. In C this is
  undefined.
example: int8([1, -8, 100, -1]), int8([3, 1, 9, 9]), direction='right'
# PRELU: The value, scaled by a tensor of slopes below 0.
| x if x >= 0, slope * x if x < 0
input: The operand, x in the formula.
slope: Broadcasts to the dimensions of `input`, never the other way.
- Slopes align at the last axis: per-channel slopes for [N, C, H, W] are [C, 1, 1], not [C].
example: [[-1.0, 2.0], [-3.0, -4.0]], [[0.5], [0.25]]
# POW: A power.
| input ^ exponent
input: The base.
exponent: May have another data type than `input`; broadcast against it.
-> output: The data type of `input`. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- The result has the data type of the base: int32 to the power of 0.5 is computed in float64 and truncated.
- Integers to nonnegative integer powers are exact and wrap around.
- A negative base with a fractional exponent gives NaN.
example: [1.0, 2.0, 3.0], [2, 0, -1]
# MOD: The remainder of a division.
| fmod false: x - y * floor(x / y)
| fmod true: x - y * trunc(x / y)
x: The dividend.
y: The divisor; broadcast against `x`.
fmod: True: the result has the sign of the dividend, as in C's fmod. False: of the divisor, as in Python's %.
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- Floating-point operands need fmod true.
- Integers divided by 0 are undefined.
example: [-7, 7, -7, 7], [3, 3, -3, -3], fmod=False
# FLOOR_DIV: The quotient, rounded down.
| floor(x / y)
x: The dividend.
y: The divisor; broadcast against `x`.
-> output: The data type of `x`. The dimensions of both inputs, broadcast as in numpy: aligned at the last axis.
- -7 by 2 gives -4; DIV of integers gives -3.
- Integers divided by 0 are undefined.
- For floating-point numbers, the exact quotient is rounded down, as in Python's //.
example: [-7, 7, -7, 7], [2, 2, -2, -2]
# SUM: The sum of any number of operands.
| inputs[0] + inputs[1] + …
inputs: One or more operands of the same data type; all are broadcast.
-> output: The inputs' data type. Their dimensions, broadcast as in numpy.
FLOPs: (number of inputs - 1) per output element
example: [1.0, 2.0], [10.0, 20.0], [[100.0], [200.0]]
# WHERE: One of two values, selected by a condition.
| x if condition, else y
condition: Truth values.
x: The values if the condition is true.
y: The values otherwise.
-> output: The data type of `x`. The dimensions of all three, broadcast as in numpy.
- All three are broadcast, the condition too.
- A NaN that is not selected has no effect.
example: [True, False, True], [[1.0], [2.0]], [10.0, 20.0, 30.0]
# CELU: ELU with slope 1 at 0 for every alpha.
| max(0, x) + min(0, alpha * (exp(x / alpha) - 1))
alpha: Width of the exponential part; not 0.
- alpha 0 is rejected.
example: [-1.0, -0.5, 0.0, 0.5, 1.0], alpha=2.0
# IS_NAN: True if the value is NaN.
| x != x
-> output: bool, with the dimensions and the layout of `input`.
example: float32([0.0, 'nan', 'inf'])
# IS_INF: True if the value is infinite.
| (x = inf and detect_positive) or (x = -inf and detect_negative)
detect_negative: True: -inf counts.
detect_positive: True: inf counts.
-> output: bool, with the dimensions and the layout of `input`.
example: float32(['-inf', 0.0, 'inf', 'nan']), detect_negative=False
# SWIGLU: A gated activation of language models: the Swish of one operand times another.
| gate / (1 + exp(-alpha * gate)) * value
gate: Argument of the activation.
value: Factor of the activation.
alpha: Factor of the gate inside the sigmoid; 1 for SiLU.
-> output: Data type, dimensions and layout of `gate`.
- Both have the same dimensions: nothing is broadcast, and no tensor is split.
example: [-1.0, 0.0, 2.0], [10.0, 10.0, 10.0]
"""
