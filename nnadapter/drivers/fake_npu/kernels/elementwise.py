"""Element-wise kernels: unary, binary, variadic and conditional, with numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from nnadapter.drivers.fake_npu.graph import Activation, TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import BLOCK_ELEMENTS, blocks
from nnadapter.drivers.fake_npu.kernels.functions import FUNCTIONS, Function
from nnadapter.drivers.fake_npu.kernels.kernel import Finish, KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.ir.operand import Array


def activation_scratch(function: str, result: TensorType) -> tuple[TensorType, ...]:
    """Temporaries that an activation needs on a result of that type: one block each."""
    count = FUNCTIONS[function].temporaries
    return (TensorType(result.dtype, (min(result.size, BLOCK_ELEMENTS),)),) * count if count else ()


def bind_activation(activation: Activation, temporaries: Sequence[Array]) -> Finish:
    """The fused form of an activation: applied to any contiguous array, in place."""
    row = FUNCTIONS[activation.function]
    function = row.make(*activation.parameters)

    return lambda array: _over_blocks(function, array, array, temporaries, blocked=True)


def _bind_unary(call: KernelArguments) -> Run:
    name, arguments = call.parameters["function"], call.parameters["arguments"]
    row = FUNCTIONS[name]
    return _over_blocks(row.make(*arguments), call.inputs[0], call.outputs[0], call.scratch, row.blocked)


def _over_blocks(function: Function, x: Array, out: Array, temporaries: Sequence[Array], blocked: bool) -> Run:
    x, out = x.reshape(-1), out.reshape(-1)
    step = BLOCK_ELEMENTS if blocked else max(1, x.size)
    return in_sequence(
        [
            partial(
                function, x[block], out[block], *(temporary[: block.stop - block.start] for temporary in temporaries)
            )
            for block in blocks(x.size, step)
        ]
    )


def _unary_scratch(outline: Outline) -> tuple[TensorType, ...]:
    return activation_scratch(outline.parameters["function"], outline.outputs[0])


def _divide(x: Array, y: Array, out: Array) -> None:
    """Division as ONNX has it: integers truncate towards zero, where numpy rounds down."""
    if out.dtype.kind == "f":
        np.divide(x, y, out)
        return
    quotient, remainder = np.divmod(x, y)
    np.add(quotient, (remainder != 0) & ((x < 0) != (y < 0)), out, casting="unsafe")


def _power(x: Array, exponent: Array, out: Array) -> None:
    """Powers; integers go through float64, as ONNX Runtime's do, but for those of 64 bits, which it does not hold."""
    if out.dtype.kind == "f" or (out.dtype == x.dtype == exponent.dtype == np.int64 and exponent.min() >= 0):
        np.power(x, exponent.astype(x.dtype, copy=False), out)
    else:
        np.copyto(out, np.power(x.astype(np.float64), exponent), casting="unsafe")


BINARY: Mapping[str, Callable[..., object]] = {
    "add": np.add,
    "and": np.logical_and,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "divide": _divide,
    "equal": np.equal,
    "float_modulo": np.fmod,
    "floor_divide": np.floor_divide,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "modulo": np.mod,
    "multiply": np.multiply,
    "not_equal": np.not_equal,
    "or": np.logical_or,
    "power": _power,
    # numpy defines shifts by too much, and by less than nothing, as ONNX does: the sign is what stays.
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "subtract": np.subtract,
    "xor": np.logical_xor,
}
"""Functions of two variables, called as `function(x, y, out=out)`."""


def _bind_binary(name: str) -> Callable[[KernelArguments], Run]:
    function = BINARY[name]

    def bind(call: KernelArguments) -> Run:
        (x, y), (out,), finish = call.inputs, call.outputs, call.finish
        if finish is None:
            return lambda: function(x, y, out=out)

        steps: list[Run] = []
        for left, right, target in _together(x, y, out):
            steps += [partial(function, left, right, out=target), finish(target)]
        return in_sequence(steps)

    return bind


def _together(x: Array, y: Array, out: Array) -> list[tuple[Array, Array, Array]]:
    """Blocks in which result and operands have the same elements, or one operand the same for each row of the result.

    All at once where an operand is broadcast in another way.
    """
    if x.shape == y.shape == out.shape:
        x, y, out = x.reshape(-1), y.reshape(-1), out.reshape(-1)
        return [(x[block], y[block], out[block]) for block in blocks(out.size, BLOCK_ELEMENTS)]
    if not (out.size and _has_rows(x, out) and _has_rows(y, out)):
        return [(x, y, out)]
    depth = out.shape[-1]
    x, y, out = x.reshape(-1, depth), y.reshape(-1, depth), out.reshape(-1, depth)
    return [
        (x if len(x) == 1 else x[rows], y if len(y) == 1 else y[rows], out[rows])
        for rows in blocks(len(out), max(1, BLOCK_ELEMENTS // depth))
    ]


def _has_rows(operand: Array, out: Array) -> bool:
    """Whether an operand is as large as the result, or one row of it."""
    return operand.shape == out.shape or operand.shape[-1:] == (operand.size,) == out.shape[-1:]


def _bind_sum(call: KernelArguments) -> Run:
    """The sum of three or more tensors."""
    (first, second, *others), (out,) = call.inputs, call.outputs

    def run() -> None:
        np.add(first, second, out)
        for other in others:
            np.add(out, other, out)

    return run


def _bind_prelu(call: KernelArguments) -> Run:
    """max(x, 0) + slope min(x, 0)."""
    (x, slope), (out,), (negative,) = call.inputs, call.outputs, call.scratch

    def run() -> None:
        np.minimum(x, 0, out=negative)
        np.multiply(negative, slope, negative)
        np.maximum(x, 0, out=out)
        np.add(out, negative, out)

    return run


def _bind_where(call: KernelArguments) -> Run:
    (condition, x, y), (out,) = call.inputs, call.outputs

    def run() -> None:
        np.copyto(out, y)
        np.copyto(out, x, where=condition)

    return run


def _bind_cast(call: KernelArguments) -> Run:
    (x,), (out,) = call.inputs, call.outputs
    return lambda: np.copyto(out, x, casting="unsafe")


def _bind_round_to_half(call: KernelArguments) -> Run:
    """Rounds float32 cells to float16 values, block by block so that the half-precision copy stays in cache."""
    x, out, (half,) = call.inputs[0].reshape(-1), call.outputs[0].reshape(-1), call.scratch
    pieces = [(x[block], out[block], half[: block.stop - block.start]) for block in blocks(x.size, BLOCK_ELEMENTS)]

    def run() -> None:
        for source, target, rounded in pieces:
            np.copyto(rounded, source, casting="same_kind")
            np.copyto(target, rounded)

    return run


KERNELS: Mapping[str, NumpyKernel] = {
    name: NumpyKernel(bind=_bind_binary(name), in_place=(0, 1), fuses=True) for name in BINARY
} | {
    "cast": NumpyKernel(bind=_bind_cast),
    "prelu": NumpyKernel(bind=_bind_prelu, scratch=lambda outline: (outline.outputs[0],), in_place=(0,)),
    "round_to_half": NumpyKernel(
        bind=_bind_round_to_half,
        scratch=lambda outline: (TensorType("float16", (min(outline.outputs[0].size, BLOCK_ELEMENTS),)),),
        in_place=(0,),
    ),
    "sum": NumpyKernel(bind=_bind_sum, in_place=(0, 1)),
    "unary": NumpyKernel(bind=_bind_unary, scratch=_unary_scratch, in_place=(0,)),
    "where": NumpyKernel(bind=_bind_where),
}
"""Rows of the kernel table."""
