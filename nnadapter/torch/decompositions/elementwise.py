"""Decompositions of arithmetic: elementwise functions, rounding, float64 numbers, reductions, matrix products.

ONNX attributes and the exporter round numbers to float32, so float64 operators are decomposed. ONNX has no maxima of
bool. Logarithms and exponentials avoid cancellation, underflow and overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.ops import aten

Decomposition = Callable[..., Any]
HALVES = (torch.float16, torch.bfloat16)


def in_float32(decomposition: Decomposition) -> Decomposition:
    """Return a decomposition that computes 16-bit floats in float32, as PyTorch does."""

    @wraps(decomposition)
    def computed(values: Tensor, *arguments: Any, **named: Any) -> Any:
        if values.dtype not in HALVES:
            return decomposition(values, *arguments, **named)
        wide = [
            argument.float() if isinstance(argument, Tensor) and argument.dtype in HALVES else argument
            for argument in arguments
        ]
        return decomposition(values.float(), *wide, **named).to(values.dtype)

    return computed


def _of_reals(decomposition: Decomposition) -> Decomposition:
    @wraps(decomposition)
    def computed(values: Tensor, *arguments: Any, **named: Any) -> Any:
        if values.is_complex():
            return NotImplemented
        if not values.is_floating_point():
            values = values.to(torch.get_default_dtype())
        return in_float32(decomposition)(values, *arguments, **named)

    return computed


@_of_reals
def _expm1(values: Tensor) -> Tensor:
    return torch.tanh(values / 2) * (torch.exp(values) + 1)


@_of_reals
def _log1p(values: Tensor) -> Tensor:
    above = values + 1
    corrected = torch.log(above) * (values / (above - 1))
    return torch.where((above == 1) | (values == math.inf), values, corrected)


def _log_sigmoid(values: Tensor) -> Tensor:
    return torch.where(values < 0, values, torch.zeros_like(values)) - torch.log1p(torch.exp(-values.abs()))


def _logaddexp(first: Tensor, second: Tensor) -> Any:
    if first.is_complex() or not first.is_floating_point():
        return NotImplemented
    larger, difference = _ordered(first, second)
    return torch.where(torch.isinf(first) & (first == second), first, larger + torch.log1p(torch.exp(difference)))


def _logaddexp2(first: Tensor, second: Tensor) -> Any:
    if not first.is_floating_point():
        return NotImplemented
    larger, difference = _ordered(first, second)
    added = torch.log1p(torch.exp2(difference)) * (1 / math.log(2))
    return torch.where(torch.isinf(first) & (first == second), first, larger + added)


def _ordered(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    is_less = first < second
    larger, smaller = torch.where(is_less, second, first), torch.where(is_less, first, second)
    return larger, smaller - larger


def _is_negative(values: Tensor) -> Tensor:
    return (values < 0) | (torch.reciprocal(values) < 0)


@in_float32
def _atan2(ordinate: Tensor, abscissa: Tensor) -> Any:
    if not ordinate.is_floating_point() or not abscissa.is_floating_point():
        return NotImplemented
    height, width = ordinate.abs(), abscissa.abs()
    slope = torch.where((height == width) & (torch.isinf(height)), 1.0, height / width)
    slope = torch.where((height == 0) & (width == 0), 0.0, slope)
    angle = torch.atan(slope)
    angle = torch.where(_is_negative(abscissa), math.pi - angle, angle)
    return torch.where(_is_negative(ordinate), -angle, angle)


def _angle(values: Tensor) -> Any:
    if values.is_complex() or not values.is_floating_point():
        return NotImplemented
    angle = torch.where(values < 0, torch.full((), math.pi, dtype=values.dtype), torch.zeros_like(values))
    return torch.where(torch.isnan(values), values, angle)


def _logit(values: Tensor, eps: float | None = None) -> Any:
    if eps is None or not values.is_floating_point():
        return NotImplemented
    low, high = (torch.full((), number, dtype=values.dtype) for number in (eps, 1 - eps))
    bounded = torch.where(values < low, low, torch.where(values > high, high, values))
    return torch.log(bounded / (1 - bounded))


def _of_float64(decomposition: Decomposition) -> Decomposition:
    """Return the decomposition restricted to float64, which the exporter would round to float32."""
    return lambda values: decomposition(values) if values.dtype is torch.float64 else NotImplemented


OF_ELEMENTS: Mapping[torch._ops.OpOverload, Decomposition] = {
    **get_decompositions([aten.heaviside.default, aten.xlogy.Tensor]),
    aten.expm1.default: _expm1,
    aten.special_expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.log_sigmoid.default: _log_sigmoid,
    aten.logaddexp.default: _logaddexp,
    aten.logaddexp2.default: _logaddexp2,
    aten.atan2.default: _atan2,
    aten.angle.default: _angle,
    aten.logit.default: _logit,
    aten.isinf.default: _of_float64(lambda values: values.abs() == math.inf),
    aten.isposinf.default: _of_float64(lambda values: values == math.inf),
    aten.isneginf.default: _of_float64(lambda values: values == -math.inf),
}


def sign(values: Tensor) -> Any:
    """Return 1, 0 or -1; 0 for NaN. Source: aten::sign."""
    if not values.is_floating_point():
        return NotImplemented
    return (values > 0).to(values.dtype) - (values < 0).to(values.dtype)


def divided(dividend: Tensor, divisor: Any, *, rounding_mode: str | None) -> Any:
    """Divide and round by `rounding_mode`; floors use the remainder, so that 1 // 0.1 is 9. Source: aten::div."""
    kinds = [
        operand.is_floating_point() if isinstance(operand, Tensor) else isinstance(operand, float)
        for operand in (dividend, divisor)
    ]
    if rounding_mode is None:
        return NotImplemented
    if not any(kinds):
        return _whole_quotient(dividend, divisor, rounding_mode)
    if rounding_mode != "floor":
        return NotImplemented
    top, bottom, residual, differs = _divided_with_residual(dividend, divisor)
    quotient = (top - residual) / bottom
    quotient = torch.where(differs, quotient - 1, quotient)
    down = quotient.floor()
    down = torch.where(quotient - down > 0.5, down + 1, down)
    floored = torch.where(quotient != 0, down, torch.zeros_like(quotient))
    return torch.where(bottom == 0, top / bottom, floored)


def _whole_quotient(dividend: Tensor, divisor: Any, rounding_mode: str) -> Tensor:
    """Divide integers exactly; the exporter uses float32."""
    down = torch.ops.aten.floor_divide.default(dividend, divisor)
    if rounding_mode == "floor":
        return down
    residual = dividend - down * divisor
    return torch.where((residual != 0) & (down < 0), down + 1, down)


def floor_divided(dividend: Tensor, divisor: Any) -> Any:
    """Floor-divide real numbers. Source: aten::floor_divide."""
    is_real = isinstance(divisor, float) or (isinstance(divisor, Tensor) and divisor.is_floating_point())
    if not (dividend.is_floating_point() or is_real):
        return NotImplemented
    return divided(dividend, divisor, rounding_mode="floor")


def remainder(dividend: Any, divisor: Any) -> Any:
    """Return remainders with the sign of the divisor. Source: aten::remainder."""
    if not torch.result_type(dividend, divisor).is_floating_point:
        return NotImplemented
    _, bottom, residual, differs = _divided_with_residual(dividend, divisor)
    return torch.where(differs, residual + bottom, residual)


def _divided_with_residual(dividend: Any, divisor: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kind = torch.result_type(dividend, divisor)
    top, bottom = (
        operand.to(kind) if isinstance(operand, Tensor) else torch.full((), operand, dtype=kind)
        for operand in (dividend, divisor)
    )
    residual = torch.fmod(top, bottom)
    return top, bottom, residual, (residual != 0) & ((bottom < 0) != (residual < 0))


def round_decimals(values: Tensor, *, decimals: int = 0) -> Any:
    """Round to tens, hundreds etc. (negative `decimals`) by an exact power of ten. Source: aten::round.decimals."""
    if decimals >= 0 or not values.is_floating_point():
        return NotImplemented
    power = 10.0**-decimals
    return torch.round(values / power) * power


def multiplied_and_added(first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Decompose prims::fma, which compiled optimizer steps use."""
    return first * second + third


def _of_doubles(decomposition: Decomposition) -> Decomposition:
    @wraps(decomposition)
    def decomposed(*arguments: Any, **options: Any) -> Any:
        operands = (*arguments, *options.values())
        doubles = (isinstance(operand, Tensor) and operand.dtype is torch.float64 for operand in operands)
        return decomposition(*arguments, **options) if any(doubles) else NotImplemented

    return decomposed


def _added(first: Tensor, second: Any, *, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else torch.add(first, second * alpha)


def _subtracted(first: Tensor, second: Any, *, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else torch.sub(first, second * alpha)


def _filled(values: Tensor, mask: Tensor, value: float) -> Tensor:
    return torch.where(mask, torch.full((), value, dtype=values.dtype), values)


def _power(base: float, exponents: Tensor) -> Tensor:
    return torch.pow(torch.full((), base, dtype=exponents.dtype), exponents)


def _logarithm(base: float) -> Decomposition:
    """Return a decomposition of the logarithm without rounding log(base) to float32."""
    return lambda values: torch.log(values) * (1 / math.log(base))


_OF_PYTORCH = get_decompositions(
    [
        aten.leaky_relu.default, aten.elu.default, aten.celu.default, aten.selu.default, aten.gelu.default,
        aten.hardswish.default, aten.hardsigmoid.default, aten.hardtanh.default, aten.softplus.default,
        aten.addcmul.default, aten.addcdiv.default, aten.addmm.default, aten.baddbmm.default,
        aten.native_layer_norm.default, aten.native_group_norm.default, aten.sinc.default,
    ]
)  # fmt: skip

OF_DOUBLES: Mapping[torch._ops.OpOverload, Decomposition] = {
    operator: _of_doubles(decomposition)
    for operator, decomposition in {
        **_OF_PYTORCH,
        aten.add.Tensor: _added,
        aten.sub.Tensor: _subtracted,
        aten.masked_fill.Scalar: _filled,
        aten.pow.Scalar: _power,
        aten.log2.default: _logarithm(2),
        aten.log10.default: _logarithm(10),
    }.items()
}


_NORM_OF_FLOAT64 = get_decompositions([aten.linalg_vector_norm.default])[aten.linalg_vector_norm.default]


def as_one_element(operator: torch._ops.OpOverload) -> Decomposition:
    """Return a decomposition that reshapes rank 0 to rank 1, because ONNX needs an axis."""

    def decomposition(values: Tensor, *arguments: Any, **named: Any) -> Any:
        if values.dim():
            return NotImplemented
        lifted = [argument.reshape(-1) if isinstance(argument, Tensor) else argument for argument in arguments]
        result = operator(values.reshape(1), *lifted, **named)
        return result.reshape(()) if isinstance(result, Tensor) else tuple(output.reshape(()) for output in result)

    return decomposition


def of_first_match(*decompositions: Decomposition) -> Decomposition:
    """Return a decomposition that tries `decompositions` in order."""

    def decomposed(*arguments: Any, **named: Any) -> Any:
        for decomposition in decompositions:
            result = decomposition(*arguments, **named)
            if result is not NotImplemented:
                return result
        return NotImplemented

    return decomposed


def _converted_first(operator: torch._ops.OpOverload, values: Tensor, *arguments: Any, dtype: Any = None) -> Any:
    """Convert to `dtype` before the reduction; the exporter converts after it."""
    if dtype is None or dtype == values.dtype:
        return NotImplemented
    return operator(values.to(dtype), *arguments)


def _softmax(operator: torch._ops.OpOverload, values: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return NotImplemented if dtype is None or dtype == values.dtype else operator(values.to(dtype), dim)


def _truth_of_nothing(is_all: bool, values: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    if 0 not in [size for size in values.shape if isinstance(size, int)]:
        return NotImplemented
    counted = (values == 0) if is_all else (values != 0)
    count = counted.sum() if dim is None else counted.sum([dim] if isinstance(dim, int) else list(dim), keepdim)
    return count == 0 if is_all else count > 0


def _vector_norm(
    values: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    operator = aten.linalg_vector_norm.default
    if values.is_complex():
        return NotImplemented
    if not values.dim():
        return operator(values.reshape(1), order, [0], False, dtype=dtype).reshape(())
    result_dtype = values.dtype if dtype is None else dtype
    inner = torch.float32 if result_dtype in HALVES else result_dtype
    axes = [dim] if isinstance(dim, int) else list(dim or range(values.dim()))
    if dim is None or not axes or inner != values.dtype or dtype is not None:
        return operator(values.to(inner), order, axes, keepdim).to(result_dtype)
    return _NORM_OF_FLOAT64(values, order, dim, keepdim) if inner is torch.float64 else NotImplemented


def _moments(
    values: Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool
) -> tuple[Tensor, Tensor] | None:
    axes = [axis % values.dim() for axis in dim] if dim and values.dim() else list(range(values.dim()))
    sizes = [values.shape[axis] for axis in axes]
    correction = 1 if correction is None else correction
    if values.is_complex() or not (all(isinstance(size, int) for size in sizes) or 0 <= correction <= 1):
        return None
    count: Any = 1
    for size in sizes:
        count = count * size
    mean = values.sum(axes, keepdim=True) / count
    centered = values - mean
    total = (centered * centered).sum(axes, keepdim=keepdim)
    divisor = max(count - correction, 0) if isinstance(count, int) else count - correction
    return total / divisor, mean if keepdim else mean.reshape(total.shape)


def _statistics(
    is_deviation: bool,
    has_mean: bool,
    values: Tensor,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    moments = _moments(values.float() if values.dtype in HALVES else values, dim, correction, keepdim)
    if moments is None:
        return NotImplemented
    variance, mean = moments
    spread = (torch.sqrt(variance) if is_deviation else variance).to(values.dtype)
    return (spread, mean.to(values.dtype)) if has_mean else spread


def _running_product(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if dtype is None:
        dtype = values.dtype if values.is_floating_point() or values.is_complex() else torch.int64
    if dtype.is_complex:
        return NotImplemented
    inner = torch.float32 if dtype in HALVES else dtype
    products = values.to(inner, copy=True)
    length = values.shape[dim] if values.dim() else 1
    if not isinstance(length, int):
        return NotImplemented
    step = 1
    while step < length:
        first = products.narrow(dim, 0, step)
        tail = products.narrow(dim, step, length - step) * products.narrow(dim, 0, length - step)
        products, step = torch.cat([first, tail], dim), 2 * step
    return products.to(dtype)


_ALONG_AXES = (aten.prod.dim_int, aten.topk.default, aten.scatter.src, aten.scatter.value)
OF_REDUCTIONS: Mapping[torch._ops.OpOverload, Decomposition] = {
    **{operator: as_one_element(operator) for operator in _ALONG_AXES},
    **{
        operator: of_first_match(as_one_element(operator), partial(_truth_of_nothing, is_all))
        for operator, is_all in (
            (aten.any.dim, False), (aten.any.dims, False), (aten.all.dim, True), (aten.all.dims, True),
        )
    },
    aten.any.default: partial(_truth_of_nothing, False), aten.all.default: partial(_truth_of_nothing, True),
    **{operator: partial(_converted_first, operator) for operator in (aten.mean.default, aten.mean.dim)},
    **{operator: partial(_softmax, operator) for operator in (aten.softmax.int, aten.log_softmax.int)},
    aten.linalg_vector_norm.default: _vector_norm,
    aten.var.correction: partial(_statistics, False, False),
    aten.var_mean.correction: partial(_statistics, False, True),
    aten.std.correction: partial(_statistics, True, False),
    aten.std_mean.correction: partial(_statistics, True, True),
    aten.cumprod.default: _running_product,
}  # fmt: skip


def _as_numbers(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    def decomposition(values: Tensor, *arguments: Any, **named: Any) -> Any:
        if values.dtype is not torch.bool:
            return NotImplemented
        result = operator(values.to(torch.int32), *arguments, **named)
        if isinstance(result, Tensor):
            return result.to(torch.bool)
        first, *places = result
        return (first.to(torch.bool), *places)

    return decomposition


def _over_axes(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    of_truths = _as_numbers(operator)

    def decomposition(values: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
        if not values.dim():
            return as_one_element(operator)(values, [0])
        axes = [dim] if isinstance(dim, int) else list(dim)
        if not axes:
            return operator(values, list(range(values.dim())), keepdim)
        return of_truths(values, axes, keepdim)

    return decomposition


OF_EXTREMES = {
    **{
        operator: _as_numbers(operator)
        for operator in (
            aten.max.default, aten.max.dim, aten.min.default, aten.min.dim, aten.sort.default, aten.sort.stable,
        )
    },
    **{operator: _over_axes(operator) for operator in (aten.amax.default, aten.amin.default)},
}  # fmt: skip


def _without_sum(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def decomposition(added: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if beta != 0:
            return NotImplemented
        result = product(first, second)
        return result if alpha == 1 else result * alpha

    return decomposition


OF_PRODUCTS: Mapping[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.addmm.default: _without_sum(torch.mm),
    aten.addmv.default: _without_sum(torch.mv),
    aten.baddbmm.default: _without_sum(torch.bmm),
    aten.addbmm.default: _without_sum(lambda first, second: torch.bmm(first, second).sum(0)),
}
