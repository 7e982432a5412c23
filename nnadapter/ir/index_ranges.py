"""Range analysis of indices and lengths that engines use to address memory.

Each index is traced back to a proof (constants, TopK, ArgMax, NonZero, Range, Clip, Mod), to a value that a run can
check, or to an operation that permits neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnadapter.ir.operand import Array

_MOST = 2**31 - 1
"""Largest bound of an interval; larger ones might overflow."""
_REACH, _LEAST_REACH = 32, 1024
"""Largest coordinate of a region, as a multiple of the image's longest side, and its minimum in pixels."""
_DEEPEST = 64


class Size(NamedTuple):
    """Bound known at run time: the size of `value` along `axis`, plus `offset` and the sizes in `further_terms`."""

    value: str
    axis: int
    offset: int = 0
    further_terms: tuple[tuple[str, int], ...] = ()

    @property
    def terms(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(((self.value, self.axis), *self.further_terms)))

    def plus(self, number: int) -> Size:
        return self._replace(offset=self.offset + number)


Bound = int | Size


class IndexRange(NamedTuple):
    """Allowed indices: `low` to `size` - 1 + `high`. With `counts_back`, they start at `low` - `size`."""

    size: Bound
    counts_back: bool = True
    low: int | None = 0
    high: int | None = 0
    exception: int | None = None
    """Value allowed outside the range."""

    def shifted(self, number: int) -> IndexRange:
        """Return the range of values to which `number` can be added to get allowed indices."""
        return self._replace(
            low=None if self.low is None else self.low - number,
            high=None if self.high is None else self.high - number,
            exception=None if self.exception is None else self.exception - number,
        )


class IndexCheck(NamedTuple):
    """Range check at run time, when a value enters a segment."""

    value: str
    """Name of the checked value; if `interval` is set, of a constant."""
    bounds: tuple[tuple[Bound | None, Bound | None, int | None], ...]
    """Least, largest and exceptional value, for all elements or per column of the last axis."""
    reader: str
    source: str = ""
    """Model input that equals `value`; empty if there is none."""
    interval: tuple[int, Bound] | None = None
    """Interval of a constant; its bounds are compared instead of the value."""

    @property
    def sizes(self) -> tuple[str, ...]:
        bounds = [*(self.interval or ()), *(bound for low, high, _ in self.bounds for bound in (low, high))]
        return tuple(name for bound in bounds if isinstance(bound, Size) for name, _ in bound.terms)


Columns = tuple[IndexRange, ...]
"""Range of all elements, or per column of the last axis."""


class Interval(NamedTuple):
    """Least and largest value."""

    low: int
    high: Bound


class View(Protocol):
    """Interface of the analysis to a model, with values by name."""

    def node(self, name: str) -> Reader | None:
        """Return the producer of a value; None for inputs and constants."""

    def shape(self, name: str) -> Sequence[Any] | None:
        """Return the dimensions (non-int if unknown); None if the rank is unknown."""

    def dtype(self, name: str) -> str | None:
        pass

    def constant(self, name: str) -> Array | None:
        pass

    def size(self, name: str, axis: int) -> Bound:
        pass


class Reader(NamedTuple):
    """ONNX node, without its graph."""

    name: str
    kind: str
    """Op type, prefixed by `domain:` if the domain is not ONNX's."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    version: int = 0

    def input(self, position: int) -> str:
        return self.inputs[position] if position < len(self.inputs) else ""


class Use(NamedTuple):
    """Input of an operation that is an index or length, and its allowed values."""

    position: int
    allowed: Columns
    is_memory: bool = True
    """True if engines address memory with the input. Other inputs affect only time, and are checked only when they
    enter a
    segment.
    """


class AnalysisEnd(NamedTuple):
    """Value to which an index was traced back without proof of its range."""

    value: str
    allowed: Columns
    interval: Interval | None = None
    """Interval of a constant, if `allowed` depends on run-time sizes."""
    maker: Reader | None = None


def _axis(view: View, name: str, reader: Reader, default: int = 0) -> int | None:
    shape, axis = view.shape(name), reader.attributes.get("axis", default)
    if shape is None or not isinstance(axis, int):
        return None
    return axis + len(shape) if axis < 0 else axis


def _below_size(position: int, size: Bound, offset: int = 0, *, is_memory: bool = True) -> Use:
    """Return the use of input `position`, with values from 0 to `size` + `offset` - 1."""
    return Use(position, (IndexRange(_plus(size, offset), counts_back=False),), is_memory)


def _along(view: View, reader: Reader) -> list[Use]:
    axis = _axis(view, reader.input(0), reader)
    return [] if axis is None else [Use(1, (IndexRange(view.size(reader.input(0), axis)),))]


def _of_rows(view: View, reader: Reader, first: int) -> list[Use]:
    """Return the use of `indices` in GatherND or ScatterND: their column i indexes axis `first` + i of the data."""
    indices = view.shape(reader.input(1))
    depth = indices[-1] if indices else None
    if not isinstance(depth, int) or not depth:
        return []
    return [Use(1, tuple(IndexRange(view.size(reader.input(0), first + axis)) for axis in range(depth)))]


def _gather_nd(view: View, reader: Reader) -> list[Use]:
    return _of_rows(view, reader, reader.attributes.get("batch_dims", 0))


def _recurrent(view: View, reader: Reader) -> list[Use]:
    axis = 1 if reader.attributes.get("layout", 0) else 0
    return [_below_size(4, view.size(reader.input(0), axis), 1)]


def _reverse(view: View, reader: Reader) -> list[Use]:
    return [_below_size(1, view.size(reader.input(0), reader.attributes.get("time_axis", 0)), 1)]


def _tensor_scatter(view: View, reader: Reader) -> list[Use]:
    axis = _axis(view, reader.input(0), reader, -2)
    if axis is None:
        return []
    size, written = view.size(reader.input(0), axis), view.size(reader.input(1), axis)
    is_circular = reader.attributes.get("mode", "linear") in ("circular", b"circular")
    return [_below_size(2, size, 1 - written if isinstance(written, int) and not is_circular else 0)]


def _roi_align(view: View, reader: Reader) -> list[Use]:
    batch = _below_size(2, view.size(reader.input(0), 0))
    if reader.attributes.get("sampling_ratio", 0):
        return [batch]
    return [Use(1, (_corner(view, reader),), is_memory=False), batch]


def _corner(view: View, reader: Reader) -> IndexRange:
    sides = [side for side in (view.shape(reader.input(0)) or ())[2:] if isinstance(side, int)]
    return IndexRange(farthest_corner(sides, float(reader.attributes.get("spatial_scale", 1.0))))


def farthest_corner(sides: Sequence[int], scale: float) -> int:
    """Return a region's largest accepted coordinate; `scale` converts coordinates to image pixels."""
    return int(max([_LEAST_REACH, *(_REACH * side for side in sides)]) / (abs(scale) or 1.0)) + 1


def _max_roi_pool(view: View, reader: Reader) -> list[Use]:
    return [Use(1, (IndexRange(view.size(reader.input(0), 0), counts_back=False), *[_corner(view, reader)] * 4))]


def _rank(view: View, reader: Reader) -> list[Use]:
    shape = view.shape(reader.input(0))
    return [] if shape is None else [Use(1, (IndexRange(max(1, len(shape))),))]


def _count(view: View, reader: Reader) -> list[Use]:
    axis = _axis(view, reader.input(0), reader, -1)
    return [] if axis is None else [_below_size(1, view.size(reader.input(0), axis), 1)]


def _most_boxes(view: View, reader: Reader) -> list[Use]:
    return [_below_size(2, _MOST)] if view.constant(reader.input(2)) is None else []


def _max_unpool(view: View, reader: Reader) -> list[Use]:
    output_shape = view.shape(reader.outputs[0])
    if output_shape is None or not all(isinstance(size, int) for size in output_shape):
        return [_below_size(1, Size(reader.outputs[0], -1))]
    return [_below_size(1, int(np.prod(output_shape, dtype=np.int64)))]


def _labels(view: View, reader: Reader) -> list[Use]:
    ignored = reader.attributes.get("ignore_index")
    return [Use(1, (IndexRange(view.size(reader.input(0), 1), counts_back=False, exception=ignored),))]


def _rotary(cache: int, positions: int) -> Callable[[View, Reader], list[Use]]:
    def uses(view: View, reader: Reader) -> list[Use]:
        size = view.size(reader.input(cache), 0)
        shape = view.shape(reader.input(positions))
        length: Bound = 1
        if shape is not None and len(shape) == 1:  # a single offset, to which the position in the sequence is added
            data = view.shape(reader.input(0))
            length = view.size(reader.input(0), len(data) - 2) if data else 1
        return [_below_size(positions, size, 1 - length if isinstance(length, int) else 0)]

    return uses


def _embedding(view: View, reader: Reader) -> list[Use]:
    tables = {0: 2, 1: 4, 8: 3}
    return [
        _below_size(position, view.size(reader.input(table), 0))
        for position, table in tables.items()
        if reader.input(position) and reader.input(table)
    ]


def _features(view: View, reader: Reader) -> list[Use]:
    shape = view.shape(reader.input(0))
    return [_below_size(1, view.size(reader.input(0), len(shape) - 1))] if shape else []


def _gather_block(view: View, reader: Reader) -> list[Use]:
    shape, axis = view.shape(reader.input(0)), reader.attributes.get("gather_axis", 0)
    return [] if shape is None else [Use(1, (IndexRange(view.size(reader.input(0), axis % max(1, len(shape)))),))]


def _key_lengths(view: View, reader: Reader) -> list[Use]:
    shape = view.shape(reader.input(1))
    return [_below_size(6, view.size(reader.input(1), len(shape) - 2), 1, is_memory=False)] if shape else []


def _group_query(view: View, reader: Reader) -> list[Use]:
    past: Bound = view.size(reader.input(3), 2) if reader.input(3) else 0
    steps, total = view.size(reader.input(0), 1), _number(view, reader.input(6))
    most, least = _sum(past, steps), 0
    if total is not None and isinstance(past, int) and isinstance(steps, int):
        most, least = max(total, past), 0 if total == steps else steps - 1
    uses = [
        Use(5, (IndexRange(most, counts_back=False, low=least),), is_memory=False),
        Use(6, (IndexRange(_plus(_sum(past, steps), 1), counts_back=False, low=1),), is_memory=False),
    ]
    if reader.input(7):
        rows = view.size(reader.input(7), 0)
        uses += [_below_size(position, rows, is_memory=False) for position in (5, 9)]
    return uses


def _sum(first: Bound, second: Bound) -> Bound:
    if not isinstance(first, Size):
        return _plus(second, first)
    if not isinstance(second, Size):
        return _plus(first, second)
    return Size(first.value, first.axis, first.offset + second.offset, (*first.further_terms, *second.terms))


def _plus(bound: Bound, number: int) -> Bound:
    return bound.plus(number) if isinstance(bound, Size) else bound + number


USES: Mapping[str, Callable[[View, Reader], list[Use]]] = {
    "Gather": _along,
    "GatherElements": _along,
    "GatherND": _gather_nd,
    "Scatter": _along,
    "ScatterElements": _along,
    "ScatterND": lambda view, reader: _of_rows(view, reader, 0),
    "TensorScatter": _tensor_scatter,
    "ReverseSequence": _reverse,
    "RNN": _recurrent,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
    "CumSum": _rank,
    "TopK": _count,
    "NonMaxSuppression": _most_boxes,
    "MaxUnpool": _max_unpool,
    "NegativeLogLikelihoodLoss": _labels,
    "SoftmaxCrossEntropyLoss": _labels,
    "Attention": _key_lengths,
    "RotaryEmbedding": _rotary(1, 3),
    "com.microsoft:GroupQueryAttention": _group_query,
    "ai.onnx.ml:ArrayFeatureExtractor": _features,
    "com.microsoft:RotaryEmbedding": _rotary(2, 1),
    "com.microsoft:EmbedLayerNormalization": _embedding,
    "com.microsoft:GatherBlockQuantized": _gather_block,
    "com.microsoft:GatherND": _gather_nd,
}
"""ONNX op -> rule for the indices and lengths that it reads."""
UNCHECKED_BY_HOST = frozenset(["TopK", "RoiAlign", "MaxRoiPool", "com.microsoft:GatherBlockQuantized"])
"""Operators that ONNX Runtime does not fully check."""


def uses_of(view: View, reader: Reader) -> Iterator[tuple[Use, str]]:
    """Yield each index or length that an operation reads, with its value's name."""
    for use in USES[reader.kind](view, reader) if reader.kind in USES else ():
        name = reader.input(use.position)
        if name:
            yield use, name


def trace_back(view: View, name: str, allowed: Columns, enters: Callable[[str], bool]) -> Iterator[AnalysisEnd]:
    """Trace an index back, and yield the sources that are not proven to be in the range `allowed`.

    Tracing ends at values that a run can check, for which `enters` returns True.
    """
    pending, visited = [(name, allowed)], set[tuple[str, Columns]]()
    while pending:
        current = pending.pop()
        if current in visited:
            continue
        visited.add(current)
        name, allowed = current
        constant = view.constant(name)
        if constant is not None:
            yield from _of_constant(view, name, constant, allowed)
        elif is_proven(view, name, allowed):
            continue
        elif enters(name):
            yield AnalysisEnd(name, allowed)
        else:
            reader = view.node(name)
            input_ranges = None if reader is None else _input_ranges(view, reader, allowed)
            if input_ranges is None:
                interval = _of_sizes(view, reader, name)
                yield AnalysisEnd(name, allowed, interval, reader)
            else:
                pending += input_ranges


def _of_sizes(view: View, reader: Reader | None, name: str) -> Interval | None:
    """Return the exact interval of a size, or of a Range with step 1 that ends at a size; otherwise None."""
    if reader is None or (reader.kind == "Range" and _number(view, reader.input(2)) != 1):
        return None
    interval = interval_of(view, name) if reader.kind == "Range" or reader.kind in _SCALARS else None
    return interval if interval is not None and isinstance(interval.high, Size) else None


def _of_constant(view: View, name: str, constant: Array, allowed: Columns) -> Iterator[AnalysisEnd]:
    for column, (interval, allowed_range) in enumerate(zip(_of_columns(constant, len(allowed)), allowed, strict=True)):
        if interval is None or _is_within(interval, allowed_range):
            continue
        if isinstance(allowed_range.size, Size):
            yield AnalysisEnd(name, (allowed_range,), interval)
        else:
            shown_name = f"{name}[{column}]" if len(allowed) > 1 else name
            yield AnalysisEnd(shown_name, (allowed_range,), interval, view.node(name))


def _of_columns(array: Array, count: int) -> list[Interval | None]:
    if not array.size or array.dtype.kind not in "iub":
        return [None] * count
    rows = array.reshape(-1, count)
    return [Interval(int(low), int(high)) for low, high in zip(rows.min(0), rows.max(0), strict=True)]


def is_proven(view: View, name: str, allowed: Columns) -> bool:
    """Return whether a value is in the range `allowed` for all model inputs."""
    columns = _columns(view, name, len(allowed)) if len(allowed) > 1 else None
    if columns is not None:
        return all(map(_is_within, columns, allowed))
    interval = interval_of(view, name)
    return interval is not None and all(_is_within(interval, allowed_range) for allowed_range in allowed)


def _is_within(interval: Interval, allowed: IndexRange) -> bool:
    if allowed.exception is not None and interval == Interval(allowed.exception, allowed.exception):
        return True
    size = allowed.size
    if allowed.low is not None:
        least = allowed.low - (size if allowed.counts_back and isinstance(size, int) else 0)
        if allowed.counts_back and isinstance(size, Size) and interval.low == -1:  # dynamic sizes are never 0
            least = -1
        if interval.low < least:
            return False
    if allowed.high is None:
        return True
    most = _plus(size, allowed.high - 1)
    if isinstance(most, Size):
        if isinstance(interval.high, Size):
            return interval.high.terms == most.terms and interval.high.offset <= most.offset
        return interval.high <= most.offset + 1  # dynamic sizes are at least 1
    return isinstance(interval.high, int) and interval.high <= most


_FULL_RANGE = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
_MOVES = frozenset(["Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile"])
"""Operators that return all elements of the first input."""
_CHOOSES = frozenset(
    ["Gather", "GatherElements", "GatherND", "Slice", "Split", "Compress", "Unique", "DepthToSpace", "SpaceToDepth"]
) | {"ReverseSequence", "ReduceMax", "ReduceMin", "MaxPool"}
"""Operators that return some elements of the first input."""


def _input_ranges(view: View, reader: Reader, allowed: Columns) -> list[tuple[str, Columns]] | None:
    """Return a node's inputs with ranges that imply an `allowed` result; None if unknown."""
    kind, first = reader.kind, reader.input(0)
    if kind in _MOVES:
        if len(allowed) == 1 or kind == "Identity":
            return [(first, allowed)]
        shape = view.shape(first)
        keeps = kind == "Reshape" and shape and shape[-1] == len(allowed)
        return [(first, allowed)] if keeps else None
    if kind == "Concat":
        return _input_range_of_concat(view, reader, allowed)
    if kind == "Cast":
        to, of = view.dtype(reader.outputs[0]), view.dtype(first)
        return (
            [(first, allowed)] if to in _FULL_RANGE and of in (*_FULL_RANGE, "float32", "float64", "float16") else None
        )
    if kind in ("Add", "Sub", "Max", "Min") and len(reader.inputs) == 2:
        return _input_range_of_arithmetic(view, reader, allowed)
    if kind == "Where" and len(allowed) == 1:
        return _input_range_of_where(view, reader, allowed[0])
    if kind == "Clip" and len(allowed) == 1:
        low, high = (_number(view, reader.input(position)) for position in (1, 2))
        bounded = (low is not None or not reader.input(1)) and (high is not None or not reader.input(2))
        return [(first, (_cut(allowed[0], low, high),))] if bounded and not reader.attributes else None
    return None


def _input_range_of_concat(view: View, reader: Reader, allowed: Columns) -> list[tuple[str, Columns]] | None:
    if len(allowed) == 1:
        return [(name, allowed) for name in reader.inputs]
    axis, shapes = _axis(view, reader.inputs[0], reader), [view.shape(name) for name in reader.inputs]
    if axis is None or any(shape is None for shape in shapes):
        return None
    if axis != len(shapes[0] or ()) - 1:
        return [(name, allowed) for name in reader.inputs]
    parts, at = list[tuple[str, Columns]](), 0
    for name, shape in zip(reader.inputs, shapes, strict=True):
        depth = shape[-1] if shape else None
        if not isinstance(depth, int):
            return None
        parts.append((name, allowed[at : at + depth]))
        at += depth
    return parts


def _input_range_of_arithmetic(view: View, reader: Reader, allowed: Columns) -> list[tuple[str, Columns]] | None:
    if reader.kind == "Add" and len(allowed) == 1:
        for first, second in (reader.inputs, reader.inputs[::-1]):
            steps, shape = view.constant(second), view.shape(first)
            if steps is not None and steps.size > 1 and shape is not None and all(size == 1 for size in shape):
                return [(first, (_scalar_addend_range(allowed[0], steps),))] if steps.dtype.kind in "iu" else None
    numbers = [_number(view, name) for name in reader.inputs]
    if numbers[1] is not None:
        name, number = reader.inputs[0], numbers[1]
    elif numbers[0] is not None and reader.kind != "Sub":
        name, number = reader.inputs[1], numbers[0]
    else:
        return None
    if reader.kind in ("Max", "Min"):
        low, high = (number, None) if reader.kind == "Max" else (None, number)
        return [(name, (_cut(allowed[0], low, high),))] if len(allowed) == 1 else None
    return [(name, tuple(column.shifted(number if reader.kind == "Add" else -number) for column in allowed))]


def _scalar_addend_range(allowed: IndexRange, steps: Array) -> IndexRange:
    low, high = allowed.low, allowed.high
    return allowed._replace(
        low=None if low is None else low - int(steps.min()),
        high=None if high is None else high - int(steps.max()),
        exception=None,
    )


def _input_range_of_where(view: View, reader: Reader, allowed: IndexRange) -> list[tuple[str, Columns]] | None:
    """Return the range of `i` in `Where(i < 0, i + size, i)`; None for any other Where."""
    condition, negative = (view.node(reader.input(position)) for position in (0, 1))
    name = reader.input(2)
    if condition is None or condition.kind != "Less" or condition.input(0) != name:
        return None
    if negative is None or negative.kind != "Add" or name not in negative.inputs or len(negative.inputs) != 2:
        return None
    if allowed != IndexRange(allowed.size):
        return None
    added = _scalar(view, negative.inputs[1 - negative.inputs.index(name)], 0)
    return [(name, (allowed,))] if _number(view, condition.input(1)) == 0 and added == allowed.size else None


def _cut(allowed: IndexRange, low: int | None, high: int | None) -> IndexRange:
    if low is not None and _is_within(Interval(low, low), allowed):
        allowed = allowed._replace(low=None)
    if high is not None and _is_within(Interval(high, high), allowed._replace(low=None)):
        allowed = allowed._replace(high=None)
    return allowed


def _number(view: View, name: str) -> int | None:
    array = view.constant(name) if name else None
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.dtype.kind in "iu" else None


def interval_of(view: View, name: str, depth: int = 0) -> Interval | None:
    """Return the interval of an integer value; None if unknown or beyond int32."""
    interval = _wide_interval(view, name, depth)
    return interval if interval is not None and _is_small(interval) else None


def _wide_interval(view: View, name: str, depth: int) -> Interval | None:
    constant = view.constant(name)
    if constant is not None:
        return _of_columns(constant, 1)[0]
    reader = view.node(name)
    size = _scalar(view, name, 0) if reader is not None and reader.kind in _SCALARS else None
    if isinstance(size, Size):
        return Interval(min(0, size.offset), size)
    if reader is not None and depth < _DEEPEST:
        interval = _interval(view, reader, name, depth + 1)
        if interval is not None and (_is_small(interval) or reader.kind in _BOUNDS):
            return interval
    dtype = view.dtype(name) or ""
    if dtype == "bool":
        return Interval(0, 1)
    if dtype.startswith(("int", "uint")) and dtype[-1].isdigit():
        limits = np.iinfo(dtype) if dtype in _FULL_RANGE else np.iinfo(np.int8)  # types narrower than 8 bits
        return Interval(int(limits.min), int(limits.max))
    return None


def _is_small(interval: Interval) -> bool:
    return interval.low >= -_MOST and (isinstance(interval.high, Size) or interval.high <= _MOST)


def _union(intervals: Sequence[Interval | None]) -> Interval | None:
    defined_intervals = [interval for interval in intervals if interval is not None]
    if not defined_intervals or len(defined_intervals) < len(intervals):
        return None
    high, *other_highs = {interval.high for interval in defined_intervals}
    for other in other_highs:
        if isinstance(high, Size) or isinstance(other, Size):
            return None
        high = max(high, other)
    return Interval(min(interval.low for interval in defined_intervals), high)


def _interval(view: View, reader: Reader, name: str, depth: int) -> Interval | None:
    kind = reader.kind

    of_each = _wide_interval if kind in _BOUNDS else interval_of

    def of(position: int) -> Interval | None:
        return of_each(view, reader.input(position), depth) if reader.input(position) else None

    if kind in ("Gather", "Slice", "Split", "GatherND"):
        chosen = _chosen(view, reader, name)
        if chosen is not None:
            return chosen
    if kind in _MOVES or kind in _CHOOSES:
        return of(0) if name == reader.outputs[0] or kind == "Split" else None
    if kind == "Concat":
        return _union([interval_of(view, input_name, depth) for input_name in reader.inputs])
    if kind == "Where":
        return _union([of(1), of(2)])
    if kind in ("ScatterElements", "ScatterND", "Scatter"):
        return _union([of(0), of(2)]) if reader.attributes.get("reduction", "none") in ("none", b"none") else None
    if kind in ("CumSum", "ReduceSum"):
        return _of_sum(view, reader, of(0))
    if kind == "Cast":
        interval = of(0) if not (view.dtype(reader.input(0)) or "float").startswith("float") else None
        return interval if interval is not None and _fits(interval, view.dtype(name)) else None
    if kind in ("TopK", "ArgMax", "ArgMin"):
        axis = _axis(view, reader.input(0), reader, -1 if kind == "TopK" else 0)
        is_indices = kind != "TopK" or name != reader.outputs[0]
        return None if axis is None or not is_indices else _below(view.size(reader.input(0), axis))
    if kind == "NonZero":
        sizes = [view.size(reader.input(0), axis) for axis in range(len(view.shape(reader.input(0)) or ()))]
        return _union([_below(size) for size in sizes])
    if kind == "Range":
        return _of_range(view, reader, depth)
    if kind in ("Shape", "Size"):
        return Interval(0, _MOST)
    return _arithmetic(view, reader, of) if kind in _ARITHMETIC else None


def _below(size: Bound) -> Interval:
    return Interval(0, _plus(size, -1))


def _fits(interval: Interval, dtype: str | None) -> bool:
    if isinstance(interval.high, Size):
        return dtype in ("int32", "int64")
    try:
        limits = np.iinfo(dtype or "")
    except (TypeError, ValueError):
        return False
    return limits.min <= interval.low and interval.high <= limits.max


def _of_range(view: View, reader: Reader, depth: int) -> Interval | None:
    start, step = (interval_of(view, reader.input(position), depth) for position in (0, 2))
    if start is None or step is None or step.low < 1:
        return None
    limit = _scalar(view, reader.input(1), 0)
    if limit is None:
        limit_interval = interval_of(view, reader.input(1), depth)
        limit = None if limit_interval is None else limit_interval.high
    if limit is None:
        return None
    if isinstance(limit, Size):
        return Interval(start.low, limit.plus(-1))
    return None if isinstance(start.high, Size) else Interval(start.low, max(start.low, limit - 1))


def _scalar(view: View, name: str, depth: int) -> Bound | None:
    number = _number(view, name)
    reader = view.node(name)
    if number is not None or reader is None or depth > _DEEPEST:
        return number
    if reader.kind in ("Cast", "Squeeze", "Unsqueeze", "Reshape", "Identity"):
        return _scalar(view, reader.input(0), depth + 1)
    if reader.kind == "Shape":
        shape = view.shape(reader.input(0))
        is_one = shape is not None and len(shape) == 1 and not reader.attributes
        return view.size(reader.input(0), 0) if is_one else None
    if reader.kind in ("Add", "Sub"):
        parts = [_scalar(view, input_name, depth + 1) for input_name in reader.inputs]
        sign = 1 if reader.kind == "Add" else -1
        if isinstance(parts[1], int) and parts[0] is not None:
            return _plus(parts[0], sign * parts[1])
        if sign == 1 and isinstance(parts[0], Size) and isinstance(parts[1], Size):
            return _sum(parts[0], parts[1])
        return _plus(parts[1], parts[0]) if sign == 1 and isinstance(parts[0], int) and parts[1] is not None else None
    if reader.kind in ("Gather", "Slice"):
        source, axis = view.node(reader.input(0)), _number(view, reader.input(1))
        if source is None or source.kind != "Shape" or axis is None or "start" in source.attributes:
            return None
        if reader.kind == "Slice" and _number(view, reader.input(2)) != axis + 1:
            return None
        shape = view.shape(source.input(0))
        return None if shape is None else view.size(source.input(0), axis % max(1, len(shape)))
    return None


_SCALARS = frozenset(["Cast", "Squeeze", "Unsqueeze", "Reshape", "Identity", "Add", "Sub", "Gather", "Slice"])
_BOUNDS = frozenset(["Min", "Max", "Clip"])
_ARITHMETIC = _BOUNDS | {"Add", "Sub", "Mul", "Neg", "Abs", "Div", "Mod", "Sum", "Relu"}


def _arithmetic(view: View, reader: Reader, of: Callable[[int], Interval | None]) -> Interval | None:
    if (view.dtype(reader.outputs[0]) or "float").startswith(("float", "bfloat")):
        return None
    kind, first = reader.kind, of(0)
    if kind == "Mod":
        return _of_mod(view, reader, first)
    if kind in _BOUNDS:
        return _of_bounds(reader, [of(position) for position in range(len(reader.inputs))])
    if first is None or isinstance(first.high, Size):
        return None
    if kind == "Neg":
        return Interval(-first.high, -first.low)
    if kind == "Abs":
        return Interval(0, max(abs(first.low), abs(first.high)))
    if kind == "Relu":
        return Interval(max(0, first.low), max(0, first.high))
    second = of(1)
    if len(reader.inputs) != 2 or second is None or isinstance(second.high, Size):
        return None
    if kind in ("Add", "Sum"):
        return Interval(first.low + second.low, first.high + second.high)
    if kind == "Sub":
        return Interval(first.low - second.high, first.high - second.low)
    if kind == "Mul":
        products = [factor * other for factor in (first.low, first.high) for other in (second.low, second.high)]
        return Interval(min(products), max(products))
    if kind == "Div" and second.low > 0 and first.low >= 0:
        return Interval(first.low // second.high, first.high // second.low)
    return None


def _of_mod(view: View, reader: Reader, first: Interval | None) -> Interval | None:
    divisor = _number(view, reader.input(1))
    if divisor is None or divisor <= 0:
        return None
    is_below = first is not None and first.low >= 0
    return Interval(0 if is_below or not reader.attributes.get("fmod", 0) else 1 - divisor, divisor - 1)


def _of_bounds(reader: Reader, inputs: Sequence[Interval | None]) -> Interval | None:
    if reader.attributes or inputs[0] is None:
        return None
    if reader.kind == "Clip":
        inside, least, most = inputs[0], *[*inputs[1:], None, None][:2]
        if (least is None and reader.input(1)) or (most is None and reader.input(2)):
            return None
        inside = inside if least is None else _largest([inside, least])
        return inside if most is None else _smallest([inside, most])
    intervals = [interval for interval in inputs if interval is not None]
    if len(intervals) < len(inputs):
        return None
    return _smallest(intervals) if reader.kind == "Min" else _largest(intervals)


def _smallest(intervals: Sequence[Interval]) -> Interval:
    """Return an interval for the minimum of values. If upper bounds cannot be compared, it has any of them."""
    highs = [interval.high for interval in intervals]
    numbers = [high for high in highs if isinstance(high, int)]
    sizes = [high for high in highs if isinstance(high, Size)]
    is_number = bool(numbers) and (not sizes or min(numbers) < _MOST)
    return Interval(min(interval.low for interval in intervals), min(numbers) if is_number else sizes[0])


def _largest(intervals: Sequence[Interval]) -> Interval:
    low, highs = max(interval.low for interval in intervals), {interval.high for interval in intervals}
    sizes = [high for high in highs if isinstance(high, Size)]
    numbers = [high for high in highs if isinstance(high, int)]
    # dynamic sizes are at least 1
    if sizes and (len(sizes) > 1 or any(number > sizes[0].offset + 1 for number in numbers)):
        return Interval(low, 2**63 - 1)
    return Interval(low, sizes[0] if sizes else max(numbers))


def _of_sum(view: View, reader: Reader, terms: Interval | None) -> Interval | None:
    axis, shape = _number(view, reader.input(1)), view.shape(reader.input(0))
    if terms is None or axis is None or not shape:
        return None
    size = view.size(reader.input(0), axis % len(shape))
    if isinstance(size, Size):
        return Interval(0, size) if terms.low >= 0 and terms.high == 1 else None
    if isinstance(terms.high, Size):
        return None
    return Interval(min(0, size * terms.low), max(0, size * terms.high))


def _parts(view: View, name: str, depth: int = 0) -> tuple[int, list[Interval]] | None:
    """Return an axis of a value, and the interval at each index along it; None if unknown."""
    reader = view.node(name)
    if reader is None or depth > _DEEPEST:
        return None
    first = reader.input(0)
    if reader.kind == "NonZero":
        rank = len(view.shape(first) or ())
        return 0, [_below(view.size(first, axis)) for axis in range(rank)]
    if reader.kind == "NonMaxSuppression":
        scores = reader.input(1)
        return 1, [_below(view.size(scores, axis)) for axis in range(3)]
    if reader.kind in ("Identity", "Cast", "Transpose"):
        axis_intervals, shape = _parts(view, first, depth + 1), view.shape(first)
        if axis_intervals is None or reader.kind != "Transpose" or shape is None:
            return axis_intervals
        order = list(reader.attributes.get("perm", range(len(shape) - 1, -1, -1)))
        return order.index(axis_intervals[0]), axis_intervals[1]
    return None


def _columns(view: View, name: str, count: int) -> Sequence[Interval] | None:
    axis_intervals, shape = _parts(view, name), view.shape(name)
    if axis_intervals is None or shape is None:
        return None
    axis, intervals = axis_intervals
    return intervals if axis == len(shape) - 1 and len(intervals) == count else None


def _chosen(view: View, reader: Reader, name: str) -> Interval | None:
    axis_intervals = _parts(view, reader.input(0))
    if axis_intervals is None:
        return None
    axis, intervals = axis_intervals
    is_along_axis = reader.kind in ("Gather", "Split") and _axis(view, reader.input(0), reader) == axis
    if reader.kind == "Gather" and is_along_axis:
        places = view.constant(reader.input(1))
        if places is not None and places.size and np.all(np.abs(places) < len(intervals)):
            return _union([intervals[int(place)] for place in places.reshape(-1)])
    if reader.kind == "Split" and is_along_axis and len(reader.outputs) == len(intervals):
        return intervals[reader.outputs.index(name)]
    if reader.kind == "Slice":
        start, end, axes = (_number(view, reader.input(position)) for position in (1, 2, 3))
        if start is not None and end is not None and axes == axis and not reader.input(4):
            return _union(list(intervals[start:end]))
    return None
