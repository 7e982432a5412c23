"""Checks of input values that decide the size of a result, such as repeats of Tile, before memory is allocated.

Counts are traced back to inputs through operators that only move them. Repeated tensors are assumed to be non-empty.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnadapter.errors import InputValueError
from nnadapter.limits import COUNTED_ELEMENTS, RESIZED_ELEMENTS
from nnadapter.onnx.wire_format import mapped, mentioned, read_graphs
from nnadapter.records import dataclass

_Numbers = np.ndarray[Any, Any]
_Find = Callable[[Mapping[str, Any]], _Numbers]
_DEEPEST = 16
_MOVES = frozenset(("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten"))


class CountedNode(Protocol):
    """Node of any model representation."""

    @property
    def op_type(self) -> str:
        pass

    @property
    def inputs(self) -> Sequence[str]:
        pass

    @property
    def outputs(self) -> Sequence[str]:
        pass


class CountRule(NamedTuple):
    """Rule of an operator.

    It has the input positions of counts, a function that returns the least number of result elements, and a limit of
    that number.
    """

    positions: tuple[int, ...]
    elements: Callable[..., float]
    most: int = RESIZED_ELEMENTS


def _product(numbers: _Numbers) -> float:
    return float(np.prod(np.maximum(numbers.astype(np.float64), 1)))


def _sum(numbers: _Numbers) -> float:
    """Add absolute values: ONNX Runtime truncates some counts to 32 bits, so negative ones may become positive."""
    return float(np.abs(numbers.astype(np.float64)).sum())


def _range(start: _Numbers, limit: _Numbers, step: _Numbers) -> float:
    first, last, width = (float(operand[0]) if operand.size else 0.0 for operand in (start, limit, step))
    return (last - first) / width if width else 0.0


def _padded(numbers: _Numbers) -> float:
    pairs = numbers.astype(np.float64).reshape(2, -1) if numbers.size % 2 == 0 else np.zeros((2, 0))
    return float(np.prod(np.maximum(1 + pairs.sum(0), 1)))


def _mel(bins: _Numbers, length: _Numbers) -> float:
    return _sum(bins) * (_sum(length) / 2 + 1)


RULES: Mapping[str, tuple[CountRule, ...]] = {
    "AffineGrid": (CountRule((1,), _product),),
    "BlackmanWindow": (CountRule((0,), _sum, COUNTED_ELEMENTS),),
    "CenterCropPad": (CountRule((1,), _product),),
    "Col2Im": (CountRule((1,), _product),),
    "ConstantOfShape": (CountRule((0,), _product),),
    "DFT": (CountRule((1,), _sum, COUNTED_ELEMENTS),),
    "Expand": (CountRule((1,), _product),),
    "HammingWindow": (CountRule((0,), _sum, COUNTED_ELEMENTS),),
    "HannWindow": (CountRule((0,), _sum, COUNTED_ELEMENTS),),
    "MaxUnpool": (CountRule((2,), _product),),
    "MelWeightMatrix": (CountRule((0, 1), _mel, COUNTED_ELEMENTS),),
    "OneHot": (CountRule((1,), _sum),),
    "Pad": (CountRule((1,), _padded),),
    "Range": (CountRule((0, 1, 2), _range, COUNTED_ELEMENTS),),
    "Resize": (CountRule((3,), _product), CountRule((2,), _product), CountRule((1,), _product)),
    "Tile": (CountRule((1,), _product),),
    "Upsample": (CountRule((1,), _product),),
}


@dataclass(frozen=True)
class CountCheck:
    """Check of one node: counts from model inputs, and the resulting number of elements."""

    reader: str
    inputs: tuple[str, ...]
    operands: tuple[_Find, ...]
    elements: Callable[..., float]
    most: int

    def check(self, feed: Mapping[str, Any]) -> None:
        try:
            with np.errstate(all="ignore"):
                elements = self.elements(*(find(feed) for find in self.operands))
        except (TypeError, ValueError, AttributeError, LookupError):
            return
        if elements > self.most and np.isfinite(elements):
            raise InputValueError(
                f"input {self.inputs[0]!r} makes {self.reader} compute {elements:.0f} elements or more; expected at "
                f"most {self.most}; feed smaller values",
                name=self.inputs[0],
            )


def wire_checks(source: str | os.PathLike[str] | bytes, inputs: frozenset[str]) -> tuple[CountCheck, ...]:
    """Return a serialized model's count checks, read without the onnx package; empty if unreadable."""
    try:
        with mapped(source) as contents:
            if not mentioned(contents, frozenset(map(str.encode, RULES))):
                return ()
            graph = read_graphs(contents)[0]

            def values(name: str) -> Sequence[float] | None:
                constant = graph.constant(name)
                return None if constant is None else constant.values

            return count_checks(graph.nodes, graph.producers, values, inputs)
    except (OSError, ValueError, IndexError, TypeError, RecursionError, struct.error):
        return ()


def count_checks(
    nodes: Iterable[CountedNode],
    producers: Mapping[str, CountedNode],
    constant: Callable[[str], Sequence[float] | _Numbers | None],
    inputs: frozenset[str],
) -> tuple[CountCheck, ...]:
    """Return a graph's count checks; `constant` returns a constant's contents, or None."""
    resolver = _Resolver(producers, constant, inputs)
    return tuple(
        check for node in nodes for rule in RULES.get(node.op_type, ()) for check in resolver.checks(node, rule)
    )


@dataclass(frozen=True)
class _Resolver:
    producers: Mapping[str, CountedNode]
    constant: Callable[[str], Sequence[float] | _Numbers | None]
    inputs: frozenset[str]

    def checks(self, node: CountedNode, rule: CountRule) -> Iterable[CountCheck]:
        names = [node.inputs[position] if position < len(node.inputs) else "" for position in rule.positions]
        sources = dict[str, None]()
        operands = [self._operand(name, sources, 0) if name else None for name in names]
        resolved = [operand for operand in operands if operand is not None]
        if sources and len(resolved) == len(operands):
            reader = f"{node.op_type} {node.outputs[0]!r}"
            yield CountCheck(reader, tuple(sources), tuple(resolved), rule.elements, rule.most)

    def _operand(self, name: str, sources: dict[str, None], depth: int) -> _Find | None:
        constant = self.constant(name)
        if constant is not None:
            numbers = np.asarray(constant).reshape(-1)
            return lambda feed: numbers
        if name in self.inputs:
            sources[name] = None
            return partial(_fed, name)
        node = self.producers.get(name)
        if node is None or depth > _DEEPEST or not node.inputs:
            return None
        if node.op_type in _MOVES:
            return self._operand(node.inputs[0], sources, depth + 1)
        if node.op_type != "Concat":
            return None
        parts = [self._operand(input_name, sources, depth + 1) for input_name in node.inputs]
        resolved = [part for part in parts if part is not None]
        return partial(_joined, resolved) if len(resolved) == len(parts) else None


def _fed(name: str, feed: Mapping[str, Any]) -> _Numbers:
    value = feed[name]
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value).reshape(-1)


def _joined(parts: Sequence[_Find], feed: Mapping[str, Any]) -> _Numbers:
    return np.concatenate([part(feed) for part in parts])
