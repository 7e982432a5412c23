"""Optimizers of ONNX Runtime that compute something else than the model or crash, found before a model is loaded.

`FLAWS` lists them: the optimizers to disable, and a check of a graph. The words that a form needs are searched for
first, so most models cost one search through their bytes.

Source: ONNX Runtime's core/optimizer; each form was seen to go wrong with 1.32.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nnadapter.drivers.onnxruntime.optimizers import EXTENDED
from nnadapter.onnx.mentions import mapped, search
from nnadapter.onnx.wire_format import Contents
from nnadapter.onnx.wire_nodes import (
    DOUBLE,
    FLOAT16,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    WireConstant,
    WireGraph,
    WireNode,
    read_inlined_graphs,
)

_UNCHANGED = frozenset(("Identity", "Dropout", "Cast", "Expand", "Transpose", "Slice"))
"""Operators that ONNX Runtime removes before a fusion when they change nothing."""
_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
"""The operand with which an operator changes nothing."""
_INTEGERS = (UINT8, INT8, UINT16, INT16)
"""Data types that ReluQuantRewrite knows."""
_LONGEST_CHAIN = 100
_MATRIX_RANK = 2
_MOVED_BATCH = (b"permB", *(b"perm@" + bytes((first,)) for first in range(1, 6)))
"""Byte patterns of an attribute `perm`: packed, or unpacked with a first number other than 0."""


class Flaw(NamedTuple):
    """A form of graph that some optimizers compute wrongly, or end the process for."""

    optimizers: tuple[str, ...]
    words: tuple[bytes, ...]
    """Words that a model of the form mentions."""
    occurs_in: Callable[[WireGraph], bool]
    any_word: tuple[bytes, ...] = ()
    """Words of which a model of the form mentions one."""


class _Norm(NamedTuple):
    """A division by `Sqrt(Add(ReduceMean(Pow(base, exponent)), epsilon))`, or a product with its reciprocal."""

    power: WireNode
    mean: WireNode
    epsilon: str
    root: WireNode
    numerator: str


def _layer_norm(graph: WireGraph) -> bool:
    """Check for a norm of a difference with another exponent or operand order than a layer norm's."""
    for norm in _norms(graph):
        base, exponent = (_producer(graph, name) for name in norm.power.inputs)
        if all(node is None or node.op_type != "Sub" for node in (base, exponent)):
            continue
        numerator = _producer(graph, norm.numerator)
        power = _constant(graph, norm.power.inputs[1])
        if power is None or power.number != 2 or _has_another_shape(graph, norm) or numerator is norm.root:
            return True
        if any(each and each.op_type == "Sub" and _is_reversed(graph, each) for each in (base, numerator)):
            return True
    return False


def _rms_norm(graph: WireGraph) -> bool:
    """Check for an RMS norm of another shape than its input: a mean without keepdims, or constants of a higher rank."""
    for norm in _norms(graph):
        exponent = _constant(graph, norm.power.inputs[1])
        is_square = exponent is None or not exponent.is_known or exponent.number == 2
        if is_square and _has_another_shape(graph, norm):
            return True
    return False


def _has_another_shape(graph: WireGraph, norm: _Norm) -> bool:
    rank = max(1, graph.least_rank(norm.power.inputs[0]))
    constants = (_constant(graph, name) for name in (norm.power.inputs[1], norm.epsilon))
    if any(constant is not None and (not constant.is_known or len(constant.shape) > rank) for constant in constants):
        return True
    return graph.integer(norm.mean, "keepdims", 1) == 0


def _is_reversed(graph: WireGraph, node: WireNode) -> bool:
    """Check whether a Sub is not `x - mean` with retained dimensions."""
    first, second = (_producer(graph, name) for name in node.inputs)
    if second is None or second.op_type != "ReduceMean":
        return first is not None and first.op_type == "ReduceMean"
    if (
        first is not None
        and first.op_type == "ReduceMean"
        and _root(graph, first.inputs[0]) == _root(graph, node.inputs[1])
    ):
        return True
    return graph.integer(second, "keepdims", 1) == 0


def _norms(graph: WireGraph) -> Iterator[_Norm]:
    for numerator, name in _quotients(graph):
        root = _producer(graph, name)
        total = _producer(graph, root.inputs[0]) if root is not None and root.op_type == "Sqrt" else None
        if root is None or total is None or total.op_type != "Add":
            continue
        for operand, epsilon in (total.inputs, total.inputs[::-1]):
            mean = _producer(graph, operand)
            power = _producer(graph, mean.inputs[0]) if mean is not None and mean.op_type == "ReduceMean" else None
            if mean is not None and power is not None and power.op_type == "Pow":
                yield _Norm(power, mean, epsilon, root, numerator)


def _quotients(graph: WireGraph) -> Iterator[tuple[str, str]]:
    """Yield the numerator and each operand of a division, or the factor and the divisor of a reciprocal."""
    for node in graph.nodes:
        if len(node.inputs) != 2:
            continue
        if node.op_type == "Div":
            yield from ((node.inputs[0], name) for name in node.inputs)
        elif node.op_type == "Mul":
            for name, factor in (node.inputs, node.inputs[::-1]):
                division = _producer(graph, name)
                if division is not None and division.op_type == "Div" and len(division.inputs) == 2:
                    yield factor, division.inputs[1]


def _reciprocal(graph: WireGraph) -> bool:
    """Check for `1 / x * w` of integers, or with a 1 that has more dimensions than x."""
    for node in graph.nodes:
        numerator = _constant(graph, node.inputs[0]) if node.op_type == "Div" else None
        if numerator is None or (numerator.is_known and numerator.number != 1):
            continue
        if (
            not numerator.is_known
            or numerator.data_type in (INT32, INT64)
            or len(numerator.shape) > graph.least_rank(node.inputs[1])
        ):
            return True
    return False


def _nearly_neutral(graph: WireGraph) -> bool:
    """Check for a float64 operand that changes something, and would not in float32."""
    for node in graph.nodes:
        neutral = _NEUTRAL.get(node.op_type)
        for name in node.inputs if neutral is not None else ():
            constant = graph.constant(name)
            number = constant.number if constant is not None and constant.data_type == DOUBLE else None
            if number is not None and number != neutral and _in_float32(number) == neutral:
                return True
    return False


def _in_float32(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return number


def _expand_to_nothing(graph: WireGraph) -> bool:
    """Check for an Expand to a constant shape with a 0 in it."""
    targets = (_constant(graph, node.inputs[1]) for node in graph.nodes if node.op_type == "Expand")
    return any(target is not None and 0 in (target.values or ()) for target in targets)


def _quantized_relu(graph: WireGraph) -> bool:
    """Check for a Relu that is quantized with a zero point of another type than integers of 8 or 16 bits."""
    for node in graph.nodes:
        if node.op_type != "QuantizeLinear" or len(node.inputs) < 3:
            continue
        relu, zero_point = _producer(graph, node.inputs[0]), graph.constant(node.inputs[2])
        is_constant = zero_point is not None and zero_point.data_type in _INTEGERS
        if relu is not None and relu.op_type == "Relu" and not is_constant:
            return True
    return False


def _requantized(graph: WireGraph) -> bool:
    """Check for a pair of QuantizeLinear and DequantizeLinear after a pair with other parameters."""
    return any(_parameters(graph, first) != _parameters(graph, second) for first, second in _requantizations(graph))


def _requantized_along(graph: WireGraph) -> bool:
    """Check for a pair of QuantizeLinear and DequantizeLinear after a pair along another axis."""
    return any(_layout(graph, first) != _layout(graph, second) for first, second in _requantizations(graph))


def _requantizations(graph: WireGraph) -> Iterator[tuple[WireNode, WireNode]]:
    """Yield the QuantizeLinear of each pair that comes directly after another one, after that of the other."""
    for second in graph.nodes:
        between = _producer(graph, second.inputs[0]) if second.op_type == "QuantizeLinear" else None
        first = _producer(graph, between.inputs[0]) if between and between.op_type == "DequantizeLinear" else None
        if first and first.op_type == "QuantizeLinear":
            yield first, second


def _parameters(graph: WireGraph, node: WireNode) -> tuple[object, ...]:
    """Return the scale and the zero point, and what they are per axis or block of."""
    return (*(_constant(graph, name) for name in node.inputs[1:]), _layout(graph, node))


def _layout(graph: WireGraph, node: WireNode) -> tuple[int, ...]:
    """Return the axis and the block size of a quantization, nothing if it has one scale."""
    scale = _constant(graph, node.inputs[1])
    is_single = scale is not None and not scale.shape
    return () if is_single else (graph.integer(node, "axis", 1), graph.integer(node, "block_size", 0))


def _half_batch(graph: WireGraph) -> bool:
    """Check for a float16 product of constants, and a Transpose that makes a later dimension the first.

    If they are fused, `FuseFp16InitializerToFp32NodeTransformer` ends the process. Other optimizers remove or move what
    stands between them, so every such Transpose counts.
    """
    permutations = (graph.integers(node, "perm") for node in graph.nodes if node.op_type == "Transpose")
    return any(len(permutation) > _MATRIX_RANK and permutation[0] != 0 for permutation in permutations) and any(
        _is_half(graph, name) for node in graph.nodes if node.op_type == "MatMul" for name in node.inputs
    )


def _is_half(graph: WireGraph, name: str) -> bool:
    """Check whether a value follows from constants of which one is float16."""
    pending, visited, has_half = [name], set[str](), False
    while pending:
        name = pending.pop()
        constant, node = graph.constant(name), graph.producers.get(name)
        if constant is not None and constant.is_known:
            has_half |= constant.data_type == FLOAT16
        elif node is None:
            return False
        elif name not in visited:
            visited.add(name)
            has_half |= node.op_type == "Cast" and graph.integer(node, "to", 0) == FLOAT16
            pending.extend(filter(None, node.inputs))
    return has_half


FLAWS = {
    "layer norm": Flaw(("LayerNormFusionL1", "LayerNormFusionL2"), (b"ReduceMean", b"Sqrt", b"Sub"), _layer_norm),
    "RMS norm": Flaw(("SimplifiedLayerNormFusion",), (b"ReduceMean", b"Sqrt", b"Pow"), _rms_norm),
    "reciprocal": Flaw(("DivMulFusion",), (b"Div", b"Mul"), _reciprocal),
    "nearly neutral operand": Flaw(("NoopElimination",), (b"Sub",), _nearly_neutral),
    "empty Expand": Flaw(("ExpandElimination",), (b"Expand",), _expand_to_nothing),
    "quantized Relu": Flaw(("ReluQuantRewrite",), (b"Relu", b"QuantizeLinear"), _quantized_relu),
    "requantization": Flaw(("DoubleQDQPairsRemover",), (b"DequantizeLinear", b"QuantizeLinear"), _requantized),
    "requantization along another axis": Flaw(
        ("TransposeOptimizer", EXTENDED), (b"DequantizeLinear", b"QuantizeLinear"), _requantized_along
    ),
    "float16 batch": Flaw(("MatmulTransposeFusion",), (b"MatMul", b"Transpose"), _half_batch, _MOVED_BATCH),
}


def wrong_fusions(source: str | os.PathLike[str] | bytes) -> tuple[str, ...]:
    """Return the optimizers that compute something else than a model; none if the source is not a serialized model.

    Args:
        source: its path, or its contents.
    """
    try:
        with mapped(source) as contents:
            return _wrong_fusions(contents)
    except (OSError, ValueError, IndexError, TypeError, RecursionError, struct.error):
        return ()


def _wrong_fusions(contents: Contents) -> tuple[str, ...]:
    is_mentioned = search(contents)
    flaws = [
        flaw
        for flaw in FLAWS.values()
        if all(map(is_mentioned, flaw.words)) and (not flaw.any_word or any(map(is_mentioned, flaw.any_word)))
    ]
    if not flaws:
        return ()
    graphs = read_inlined_graphs(contents)
    return tuple(name for flaw in flaws if any(map(flaw.occurs_in, graphs)) for name in flaw.optimizers)


def _producer(graph: WireGraph, name: str) -> WireNode | None:
    return graph.producers.get(_root(graph, name))


def _constant(graph: WireGraph, name: str) -> WireConstant | None:
    return graph.constant(name) or graph.constant(_root(graph, name))


def _root(graph: WireGraph, name: str) -> str:
    """Return the value that a value equals after the removal of operators that change nothing."""
    for _ in range(_LONGEST_CHAIN):
        node = graph.producers.get(name)
        if node is None or not node.inputs:
            break
        if node.op_type in _UNCHANGED:
            name = node.inputs[0]
            continue
        other = _other_operand(graph, node)
        if other is None:
            break
        name = other
    return name


def _other_operand(graph: WireGraph, node: WireNode) -> str | None:
    """Return the operand that an operator passes on, if its other operand is the neutral one."""
    neutral = _NEUTRAL.get(node.op_type)
    if neutral is None or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if _number(graph, second) == neutral:
        return first
    return second if node.op_type in ("Add", "Mul") and _number(graph, first) == neutral else None


def _number(graph: WireGraph, name: str) -> float | None:
    constant = graph.constant(name)
    return constant.number if constant is not None else None
