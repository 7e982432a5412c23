"""Default sizes of dynamic dimensions, further sizes to try, and shapes of key-value caches."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from nnadapter.errors import InvalidInputError, InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.inference import InitialFacts
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.preparation.prepare import Prepared, Specialized, specialize
from nnadapter.onnx.schemas import MICROSOFT
from nnadapter.onnx.signature import Shapes
from nnadapter.records import dataclass
from partition.graph import Graph, Value

_CACHE_INPUTS: Mapping[tuple[str, str], Mapping[int, int]] = MappingProxyType(
    {
        ("", "Attention"): {4: 2, 5: 2},
        (MICROSOFT, "Attention"): {4: 3},
        (MICROSOFT, "GroupQueryAttention"): {3: 2, 4: 2},
        (MICROSOFT, "MultiHeadAttention"): {6: 2, 7: 2},
    }
)
"""(domain, op) -> position of a cache input -> axis along which the cache grows."""
_MASKS: Mapping[tuple[str, str], tuple[int, ...]] = MappingProxyType(
    {
        ("", "Attention"): (3,),
        (MICROSOFT, "Attention"): (3, 5),
        (MICROSOFT, "GroupQueryAttention"): (10,),
        (MICROSOFT, "MultiHeadAttention"): (4, 5),
    }
)
"""(domain, op) -> inputs with past and new tokens on the last axis."""
_TAKES_ROOM = frozenset([(MICROSOFT, "GroupQueryAttention")])


def takes_room(nodes: Iterable[OnnxNode]) -> bool:
    """Return whether a node may write into unused space of its cache input."""
    return any((node.domain, node.op_type) in _TAKES_ROOM for node in nodes)


def counts_all(node: OnnxNode, name: str, rank: int) -> bool:
    """Return whether a node with a cache reads value `name` as a mask or bias over past and new tokens."""
    positions = _MASKS.get((plain_domain(node.domain), node.op_type), ())
    return rank > 1 and any(node.input(position) == name for position in positions)


def joined_along(node: OnnxNode, name: str, rank: int) -> int | None:
    """Return the axis along which a node appends to a value; None if it does not."""
    if node.op_type == "Concat" and not plain_domain(node.domain):
        return node.integer("axis", 0) % rank if rank else None
    caches = _CACHE_INPUTS.get((plain_domain(node.domain), node.op_type), {})
    axes = {caches.get(position) for position, read in enumerate(node.inputs) if read == name}
    return axes.pop() if len(axes) == 1 else None


Dimension = str | tuple[str, int]
"""Key of a dynamic dimension: its name, or input and axis if unnamed."""

DEFAULT_PAST_LENGTH, DEFAULT_NEW_LENGTH, DEFAULT_ENCODER_LENGTH = 127, 1, 32
"""Usual lengths; past plus new is a power of two, which engines prefer."""

_ENCODER = re.compile(r"(?<![a-z])(encoder|cross|source)(?![a-z])", re.IGNORECASE)
_CACHE = re.compile(r"(?<![a-z])(past|cache)(?![a-z])", re.IGNORECASE)
_MASK = re.compile(r"(?<![a-z])mask(?![a-z])", re.IGNORECASE)
_ALL = re.compile(r"(?<![a-z])total(?![a-z])|past.*\+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CacheDimensions:
    """Dynamic dimensions by role. Without `past_lengths`, the model has no key-value cache."""

    batch: frozenset[Dimension]
    past_lengths: frozenset[Dimension]
    total_lengths: frozenset[Dimension]
    """Lengths of past plus new tokens."""
    new_lengths: frozenset[Dimension]
    encoded: frozenset[Dimension] = frozenset()
    """Lengths of the encoder output, which are constant while a cache grows."""


def dimension_at(value: Value, axis: int) -> Dimension:
    """Return a dynamic dimension's name, or value name and axis if unnamed."""
    name = (value.shape or ())[axis]
    return name if isinstance(name, str) else (value.name, axis)


def cache_sizes(
    graph: Graph, nodes: Sequence[OnnxNode], inputs: Sequence[Value], stated: Mapping[Dimension, int]
) -> dict[Dimension, int]:
    """Return a size for every dynamic input dimension, including the `stated` sizes; empty without a cache."""
    roles = cache_roles(graph, nodes, inputs)
    if not roles.past_lengths:
        return {}
    past_length = _stated(roles.past_lengths, stated, DEFAULT_PAST_LENGTH)
    new_length = _stated(roles.new_lengths, stated, DEFAULT_NEW_LENGTH)
    encoder_length = _stated(roles.encoded, stated, DEFAULT_ENCODER_LENGTH)
    return {**sizes_of(roles, 1, past_length, new_length, encoder_length), **stated}


def cache_roles(graph: Graph, nodes: Sequence[OnnxNode], inputs: Sequence[Value]) -> CacheDimensions:
    """Return the roles of dynamic input dimensions, guessed from names and readers."""
    open_axes = [
        (value, axis)
        for value in inputs
        for axis, size in enumerate(value.shape or ())
        if not isinstance(size, int) and value.dtype is not None
    ]
    batch = {dimension_at(value, axis) for value, axis in open_axes if axis == 0}
    joined, counted = set(_joined(graph, nodes)), set(_counted(graph, nodes))
    cached, encoded, total, appended, masked = (set[Dimension]() for _ in range(5))
    for value, axis in open_axes:
        dimension = dimension_at(value, axis)
        if dimension in batch:
            continue
        if isinstance(dimension, str) and _ALL.search(dimension):
            total.add(dimension)
        elif (value.name, axis) in joined:
            cached.add(dimension)
        elif _ENCODER.search(value.name) or (isinstance(dimension, str) and _ENCODER.search(dimension)):
            encoded.add(dimension)
        elif _CACHE.search(value.name):
            cached.add(dimension)
        elif _MASK.search(value.name) or (value.name, axis) in counted:
            masked.add(dimension)
        else:
            appended.add(dimension)
    encoded -= cached
    total, appended = (total | (masked - appended)) - cached - encoded, appended - cached - encoded - total
    return CacheDimensions(
        frozenset(batch), frozenset(cached), frozenset(total), frozenset(appended), frozenset(encoded)
    )


def sizes_of(
    roles: CacheDimensions, rows: int, cached: int, appended: int, encoded: int = DEFAULT_ENCODER_LENGTH
) -> dict[Dimension, int]:
    """Return a size for every dynamic dimension by its role; `rows` is the batch size."""
    groups = (
        (roles.batch, rows),
        (roles.past_lengths, cached),
        (roles.encoded, encoded),
        (roles.total_lengths, cached + appended),
        (roles.new_lengths, appended),
    )
    return {dimension: size for group, size in groups for dimension in group}


def next_token_shapes(prepared: Prepared, shapes: Shapes) -> Shapes:
    """Return the shapes one token later: total lengths grow by one, and empty dimensions become 1."""
    graph = prepared.graph
    total_dimensions = cache_roles(graph, prepared.nodes, [graph.value(name) for name in shapes]).total_lengths
    return {
        name: tuple(
            size + 1 if size == 0 or dimension_at(graph.value(name), axis) in total_dimensions else size
            for axis, size in enumerate(shape)
        )
        for name, shape in shapes.items()
    }


def agreeing(prepared: Prepared, shapes: Shapes) -> Shapes:
    """Return the shapes with each total length set to past plus new length, if both lengths are unambiguous."""
    graph = prepared.graph
    inputs = {name: graph.value(name) for name in shapes}
    roles = cache_roles(graph, prepared.nodes, list(inputs.values()))
    ranked = {name: shape for name, shape in shapes.items() if len(inputs[name].shape or ()) == len(shape)}
    sizes = _named(inputs, ranked)
    groups = [
        {sizes[dimension] for dimension in group if dimension in sizes}
        for group in (roles.past_lengths, roles.new_lengths)
    ]
    if any(len(group) != 1 for group in groups):
        return shapes
    total_size = sum(size for group in groups for size in group)
    agreeing_shapes = {
        name: tuple(
            total_size if dimension_at(inputs[name], axis) in roles.total_lengths else size
            for axis, size in enumerate(shape)
        )
        for name, shape in ranked.items()
    }
    return {**shapes, **agreeing_shapes}


def _joined(graph: Graph, nodes: Sequence[OnnxNode]) -> Iterator[tuple[str, int]]:
    inputs, outputs = frozenset(graph.inputs), frozenset(graph.outputs)
    for node in nodes:
        if len(node.inputs) > 1 and not outputs.isdisjoint(node.outputs):
            for name in inputs.intersection(node.inputs):
                axis = joined_along(node, name, len(graph.value(name).shape or ()))
                if axis is not None:
                    yield name, axis


def _counted(graph: Graph, nodes: Sequence[OnnxNode]) -> Iterator[tuple[str, int]]:
    inputs = frozenset(graph.inputs)
    for node in nodes:
        for name in inputs.intersection(node.inputs):
            rank = len(graph.value(name).shape or ())
            if counts_all(node, name, rank):
                yield name, rank - 1


def _stated(dimensions: Collection[Dimension], stated: Mapping[Dimension, int], usual: int) -> int:
    return max((stated[dimension] for dimension in dimensions if dimension in stated), default=usual)


_Shape = Sequence[int]


def _kernel_shape_attribute(node: OnnxNode, inputs: Sequence[_Shape]) -> _Shape:
    return node.integers("kernel_shape") or ()


def _of_filter(node: OnnxNode, inputs: Sequence[_Shape]) -> _Shape:
    return inputs[1][2:]


_KERNELS: Mapping[str, Callable[[OnnxNode, Sequence[_Shape]], _Shape]] = {
    "AveragePool": _kernel_shape_attribute,
    "Conv": _of_filter,
    "LpPool": _kernel_shape_attribute,
    "MaxPool": _kernel_shape_attribute,
}


def moves_windows(node: OnnxNode) -> bool:
    """Return whether a node slides windows."""
    return node.op_type in _KERNELS and node.is_standard


def fits_windows(node: OnnxNode, inputs: Sequence[_Shape]) -> bool:
    """Return whether a node's window fits into its padded input."""
    if node.text("auto_pad", "NOTSET").startswith("SAME"):
        return True
    sizes, kernel = inputs[0][2:], _KERNELS[node.op_type](node, inputs)
    dilations = node.integers("dilations") or (1,) * len(sizes)
    pads = node.integers("pads") or (0,) * (2 * len(sizes))
    if not len(sizes) == len(kernel) == len(dilations) == len(pads) // 2:
        return False
    axes = zip(sizes, kernel, dilations, pads[: len(sizes)], pads[len(sizes) :], strict=True)
    return all((window - 1) * dilation < size + begin + end for size, window, dilation, begin, end in axes)


def wide_windows(specialized: Specialized) -> str:
    """Return the name of the first node with a window wider than its input; empty if none."""
    return next((node.name for node in specialized.nodes if moves_windows(node) and not _fits(specialized, node)), "")


def _fits(specialized: Specialized, node: OnnxNode) -> bool:
    shapes = [specialized.graph.value(name).static_shape for name in node.inputs[:2]]
    static_shapes = [shape for shape in shapes if shape is not None]
    return len(static_shapes) < len(shapes) or fits_windows(node, static_shapes)


def _of_gemm(node: OnnxNode, weight: Array) -> tuple[int, int]:
    return -2 if node.integer("transA", 0) else -1, weight.shape[-1 if node.integer("transB", 0) else -2]


_WEIGHT_AXES: Mapping[str, tuple[int, Callable[[OnnxNode, Array], tuple[int, int]]]] = {
    "BatchNormalization": (1, lambda node, weight: (1, weight.shape[0])),
    "Conv": (2, lambda node, weight: (1, weight.shape[1] * node.integer("group", 1))),
    "ConvTranspose": (2, lambda node, weight: (1, weight.shape[0])),
    "Gemm": (2, _of_gemm),
    "MatMul": (1, lambda node, weight: (-1, weight.shape[-min(weight.ndim, 2)])),
}
"""Op -> minimum rank of the weight, and rule for the axis and size that it determines."""


def sizes_of_weights(
    graph: Graph, nodes: tuple[OnnxNode, ...], constants: Mapping[str, Array], inputs: Mapping[str, Value]
) -> dict[Dimension, int]:
    """Return sizes of dynamic dimensions of `inputs` that follow from weights of consumers."""
    sizes: dict[Dimension, int] = {}
    for name, value in inputs.items():
        for index in graph.consumers.get(name, ()):
            node, shape = nodes[index], value.shape or ()
            if not node.is_standard or node.op_type not in _WEIGHT_AXES or node.input(0) != name:
                continue
            weight, (rank, size_rule) = constants.get(node.input(1)), _WEIGHT_AXES[node.op_type]
            if weight is None or weight.ndim < rank:
                continue
            axis, size = size_rule(node, weight)
            axis += len(shape) if axis < 0 else 0
            if 0 < axis < len(shape) and not isinstance(shape[axis], int):
                sizes.setdefault(dimension_at(value, axis), size)
    return sizes


_IMAGE_SIZES = (224, 320, 640, 128, 64, 32)
_OTHER_SIZES = (128, 64, 32, 16, 8, 1)
_SAMPLES = 16000
"""A second of speech, for wide windows."""
_IMAGE_RANK = 4


class _Sizes(NamedTuple):
    of_images: tuple[int, ...]
    of_others: tuple[int, ...]


def default_shapes(prepared: Prepared, requested_shapes: Shapes | None = None) -> Shapes:
    """Return a shape for every tensor input, including `requested_shapes`.

    Raises:
        InvalidInputError: a requested shape contradicts the model, or no size fits.
        InvalidModelError: an input has no data type.
    """
    requested_shapes = requested_shapes or {}
    inputs = {name: prepared.graph.value(name) for name in prepared.graph.inputs}
    for name, requested_shape in requested_shapes.items():
        check_shape(name, requested_shape, inputs)
    if all(
        value.shape is None or value.static_shape is not None or name in requested_shapes
        for name, value in inputs.items()
    ):
        stated = {name: shape for name, value in inputs.items() if (shape := value.static_shape) is not None}
        return {**stated, **requested_shapes}
    preset_shapes = {name: array.shape for name, array in prepared.defaults.items() if name not in requested_shapes}
    tried, inferred = list[Shapes](), list[Shapes]()
    weighed = sizes_of_weights(prepared.graph, prepared.nodes, prepared.constants, inputs)
    named = {**weighed, **_named(inputs, requested_shapes)}
    for sizes, bound_sizes in _candidates(prepared, inputs, named):
        shapes = {**_all_filled(inputs, sizes, bound_sizes), **preset_shapes, **requested_shapes}
        if shapes not in tried:
            tried.append(shapes)
            if prepared.accepts(shapes):
                if _agrees_as_computed(prepared, shapes):
                    return shapes
                inferred.append(shapes)
    if inferred:
        return inferred[0]
    untyped = next((name for name, value in inputs.items() if value.shape is not None and value.dtype is None), None)
    if untyped is not None:
        raise InvalidModelError(f"input {untyped!r} has no data type that ONNX knows; export the model again")
    raise InvalidInputError(
        f"the model does not state its input sizes, and no usual size is valid: {_listed(inputs)}; "
        "give them with --shape NAME=1,3,224,224 or input_shapes={name: (…)}"
    )


def _agrees_as_computed(prepared: Prepared, shapes: Shapes) -> bool:
    try:
        specialized = specialize(prepared, shapes)
    except InvalidModelError:
        return False
    if wide_windows(specialized):
        return False
    if not specialized.folded:
        return True
    return prepared.inference.agrees(InitialFacts(shapes, specialized.constants, specialized.positions))


def check_shape(name: str, shape: tuple[int, ...], inputs: Mapping[str, Value]) -> None:
    """Raise InvalidInputError if there is no input `name`, or it cannot have this shape."""
    if name not in inputs:
        raise InvalidInputError(f"the model has no input {name!r}; its inputs are {list(inputs)}", name=name)
    declared = inputs[name].shape
    fits = declared is None or (
        len(declared) == len(shape)
        and all(not isinstance(want, int) or want == got for want, got in zip(declared, shape, strict=True))
    )
    if not fits or any(dimension < 0 for dimension in shape):
        raise InvalidInputError(
            f"input {name!r} cannot have shape {list(shape)}, the model declares {list(declared or ())}; pass a shape "
            "that fits it",
            name=name,
        )


def check_known_rank(value: Value, shape: tuple[int, ...] | None) -> None:
    """Raise InvalidInputError if neither model nor caller states a tensor input's rank."""
    if shape is None and value.shape is None and value.dtype is not None and "(" not in value.dtype:
        raise InvalidInputError(
            f"the model does not state the shape of input {value.name!r}, not even its rank; give it with "
            f"--shape {value.name}=1,3,224,224 or input_shapes={{{value.name!r}: (1, 3, 224, 224)}}",
            name=value.name,
        )


def assumed_inputs(graph: Graph, requested_shapes: Shapes) -> tuple[str, ...]:
    """Return names of inputs with dynamic dimensions and no requested shape."""
    values = (graph.value(name) for name in graph.inputs if name not in requested_shapes)
    return tuple(value.name for value in values if value.shape is not None and value.static_shape is None)


def _candidates(
    prepared: Prepared, inputs: Mapping[str, Value], named: Mapping[Dimension, int]
) -> Iterator[tuple[_Sizes, Mapping[Dimension, int]]]:
    metadata = {entry.key: entry.value for entry in prepared.model.metadata_props}
    stated = tuple(int(number) for number in re.findall(r"\d+", metadata.get("imgsz", "")))
    if stated:
        yield _Sizes(stated, stated), named
    if cached := cache_sizes(prepared.graph, prepared.nodes, list(inputs.values()), named):
        yield _Sizes((1,), (1,)), cached
    yield from ((_Sizes((image,), (other,)), named) for image, other in zip(_IMAGE_SIZES, _OTHER_SIZES, strict=True))
    yield _Sizes(_IMAGE_SIZES[:1], (_SAMPLES,)), named


def _named(inputs: Mapping[str, Value], requested_shapes: Shapes) -> dict[Dimension, int]:
    return {
        dimension_at(inputs[name], axis): shape[axis]
        for name, shape in requested_shapes.items()
        for axis, dimension in enumerate(inputs[name].shape or ())
        if not isinstance(dimension, int)
    }


def _all_filled(inputs: Mapping[str, Value], sizes: _Sizes, bound_sizes: Mapping[Dimension, int]) -> Shapes:
    shaped = {name: value for name, value in inputs.items() if value.shape is not None}
    lengths, firsts = dict[Dimension, int](), dict[Dimension, int]()
    for value in sorted(shaped.values(), key=lambda value: len(value.shape or ()), reverse=True):
        filled, leading_dimensions = _with_sizes(value, sizes, bound_sizes), set[object]()
        for axis, dimension in enumerate(value.shape or ()):
            if isinstance(dimension, str) and leading_dimensions - {dimension}:
                lengths.setdefault(dimension, filled[axis])
            elif isinstance(dimension, str):  # a batch, possibly after a layer axis
                firsts[dimension] = min(filled[axis], firsts.get(dimension, filled[axis]))
            if not isinstance(dimension, int):
                leading_dimensions.add(dimension)
    return {name: _with_sizes(value, sizes, {**firsts, **lengths, **bound_sizes}) for name, value in shaped.items()}


def _with_sizes(value: Value, all_sizes: _Sizes, bound_sizes: Mapping[Dimension, int]) -> tuple[int, ...]:
    shape: list[int] = []
    size_index, sizes = 0, all_sizes.of_images if len(value.shape or ()) >= _IMAGE_RANK else all_sizes.of_others
    for position, dimension in enumerate(value.shape or ()):
        if isinstance(dimension, int):
            shape.append(dimension)
        elif dimension_at(value, position) in bound_sizes:
            shape.append(bound_sizes[dimension_at(value, position)])
        elif position == 0:
            shape.append(1)
        else:
            shape.append(sizes[min(size_index, len(sizes) - 1)])
            size_index += 1
    return tuple(shape)


def _listed(inputs: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}{list(value.shape or ())}" for name, value in inputs.items())


Sizes = Mapping[Dimension, int]

_ROWS, _CACHES, _NEW_LENGTHS = (1, 2), (0, 1, DEFAULT_PAST_LENGTH), (1, 7)
_IN_ROOM = (
    (DEFAULT_PAST_LENGTH // 2, 1),
    (DEFAULT_PAST_LENGTH // 3, 1),
    (0, 7),
    (0, 9),
    (DEFAULT_PAST_LENGTH // 2, 7),
    (DEFAULT_PAST_LENGTH // 3, 7),
)
"""Past and new tokens for caches with free space: next token, prompt, later prompt, with two lengths each."""
_PROMPT = 64
"""New tokens of a prompt. Devices with bounded dimensions accept small multiples of it, but not `_LONG`."""
_MANY_ROWS, _LONG = 8, (256, 512, 1024)
"""Large batch size, and lengths of past and new tokens.

Short lengths are first: long ones may exceed a model's last position, and such plans are useless.
"""
_MOST_COMBINED = 3
_LARGEST, _MOST_ELEMENTS = 1024, 1 << 24
"""Limits while doubling sizes."""


def further_shapes(prepared: Prepared, usual: Shapes) -> Iterator[Shapes]:
    """Yield input shapes, other than `usual`, that the model accepts, without duplicates."""
    inputs = {name: prepared.graph.value(name) for name in usual}
    visited_shapes = [usual]
    for sizes in _further_sizes(prepared, list(inputs.values()), _named(inputs, usual)):
        shapes = {name: _shape(value, usual[name], sizes) for name, value in inputs.items()}
        if shapes not in visited_shapes:
            visited_shapes.append(shapes)
            if prepared.accepts(shapes):
                yield shapes


def _further_sizes(prepared: Prepared, inputs: Sequence[Value], usual: Sizes) -> Iterator[Sizes]:
    roles = cache_roles(prepared.graph, prepared.nodes, inputs)
    if roles.past_lengths:
        yield from _of_cache(roles)
        if takes_room(prepared.nodes):
            yield from _of_cache_with_room(roles)
        return
    if not usual:
        return
    yield from _small_and_large(usual)
    yield from _small_and_large({dimension: max(1, size // 2) for dimension, size in usual.items()})
    halved = usual
    while max(halved.values()) > 1:
        halved = {dimension: max(1, size // 2) for dimension, size in halved.items()}
        yield halved
    doubled = usual
    while True:
        doubled = {dimension: 2 * size for dimension, size in doubled.items()}
        if max(doubled.values()) > _LARGEST or _elements(inputs, doubled) > _MOST_ELEMENTS:
            return
        yield doubled


def _of_cache(roles: CacheDimensions) -> Iterator[Sizes]:
    for rows, cached, appended in product(_ROWS, _CACHES, _NEW_LENGTHS):
        yield sizes_of(roles, rows, cached, appended)
    yield from (sizes_of(roles, rows, 0, _PROMPT) for rows in _ROWS)
    if roles.encoded:
        yield from (sizes_of(roles, rows, DEFAULT_PAST_LENGTH, DEFAULT_NEW_LENGTH, 1) for rows in _ROWS)
    for length in _LONG:
        yield sizes_of(roles, _MANY_ROWS, length - 1, length)


def _of_cache_with_room(roles: CacheDimensions) -> Iterator[Sizes]:
    for rows, (past, appended) in product(_ROWS, _IN_ROOM):
        yield {
            **sizes_of(roles, rows, DEFAULT_PAST_LENGTH + 1, appended),
            **dict.fromkeys(roles.total_lengths, past + appended),
        }


def _small_and_large(usual: Sizes) -> Iterator[Sizes]:
    choices = {dimension: (max(size, 2), 1) for dimension, size in usual.items()}
    if len(usual) <= _MOST_COMBINED:
        yield from (dict(zip(usual, sizes, strict=True)) for sizes in product(*choices.values()))
        return
    larger = {dimension: size for dimension, (size, _) in choices.items()}
    yield larger
    yield from ({**larger, dimension: 1} for dimension in usual)


def _shape(value: Value, usual: Sequence[int], sizes: Sizes) -> tuple[int, ...]:
    return tuple(
        size if isinstance(dimension, int) else sizes.get(dimension_at(value, axis), size)
        for axis, (size, dimension) in enumerate(zip(usual, value.shape or (), strict=True))
    )


def _elements(inputs: Sequence[Value], sizes: Sizes) -> int:
    return sum(
        prod(size if isinstance(size, int) else sizes[dimension_at(value, axis)] for axis, size in enumerate(shape))
        for value in inputs
        if (shape := value.shape) is not None
    )
