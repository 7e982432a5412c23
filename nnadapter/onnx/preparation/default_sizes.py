"""Default sizes of dynamic dimensions, tried in a stated order, and further likely ones.

Windows of convolutions and pooling that are larger than what they move over, padding included.

Of a pooling that counts such windows up ONNX says one result (`ceil_mode`); of others there is none.

Sizes for dimensions that a model leaves open, where nobody said any: tried in a stated order.

1. The model's metadata: `imgsz`, as YOLO exporters write it.
2. Of a model that keeps a cache: one more token behind it, see `kv_cache_sizes.py`.
3. Batch (the first dimension) 1, and for the others 224, 320, 640 for images (an input of rank 4 and more), 128 for
   everything else; then smaller powers of two, and at last a second of speech, 16000.

A dimension that shares its name with one of a shape that was given has that size, and one behind the batch that a
weight says has that one. Dimensions of one name have one size: that of a length where it stands
behind another open one in some input. The first sizes with which the model infers without contradiction are
taken, also with what they decide, as how much of a table of positions there is, and where windows of convolutions fit;
where no sizes do so, the first with which it infers.

Shapes beside the usual ones at which a model that leaves sizes open is likely to be run, for plans made beforehand.

1. Of a model that keeps a cache: nothing cached, one token, many, each with one new token and with several, for one row
   and for some; and as much of all as a model may take. Where the cache may have room for new tokens, as one of the
   largest length has that inputs and outputs share: nothing in it, and half of it.
2. Of others: every open dimension 1, or more than that, in all combinations where they are few; the same of half of
   them, since a usual size may be that at which something ends, as a table of positions.
3. Half of all open dimensions, a quarter and so on; and twice of them and so on, as long as inputs are not huge.

Of these, those with which the model infers without contradiction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from nnadapter.errors import InvalidInputError, InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.onnx.inference import InitialFacts
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.preparation.kv_cache_sizes import (
    DEFAULT_NEW_LENGTH,
    DEFAULT_PAST_LENGTH,
    CacheDimensions,
    Dimension,
    cache_roles,
    cache_sizes,
    dimension_at,
    sizes_of,
    takes_room,
)
from nnadapter.onnx.preparation.prepare import Prepared, Specialized, specialize
from nnadapter.onnx.signature import Shapes
from partition.graph import Graph, Value

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
"""How large a window is, by op type."""


def moves_windows(node: OnnxNode) -> bool:
    """Whether a node moves windows that have to fit."""
    return node.op_type in _KERNELS and not node.domain and not node.contradiction


def fits_windows(node: OnnxNode, inputs: Sequence[_Shape]) -> bool:
    """Whether the window of a node is no larger than what it moves over.

    Args:
        node: one that moves windows.
        inputs: the shapes of its inputs.
    """
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
    """Return the name of a node whose window is larger than what it moves over; empty where all of them fit."""
    return next((node.name for node in specialized.nodes if moves_windows(node) and not _fits(specialized, node)), "")


def _fits(specialized: Specialized, node: OnnxNode) -> bool:
    """Whether a window fits, or nobody knows."""
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
"""Ops, the least rank of their second input, and which axis of the first has which size by it."""


def sizes_of_weights(
    graph: Graph, nodes: tuple[OnnxNode, ...], constants: Mapping[str, Array], inputs: Mapping[str, Value]
) -> dict[Dimension, int]:
    """Return the sizes of open dimensions of `inputs` that go with weights beside which a node reads them."""
    sizes: dict[Dimension, int] = {}
    for name, value in inputs.items():
        for index in graph.consumers.get(name, ()):
            node, shape = nodes[index], value.shape or ()
            if node.domain or node.contradiction or node.op_type not in _WEIGHT_AXES or node.input(0) != name:
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
"""A second of speech, for models whose windows are larger than any of these."""
_IMAGE_RANK = 4


class _Sizes(NamedTuple):
    """What open dimensions get in turn, by the rank of their input."""

    of_images: tuple[int, ...]
    of_others: tuple[int, ...]


def default_shapes(prepared: Prepared, requested_shapes: Shapes | None = None) -> Shapes:
    """Return a shape for every tensor input; those in `requested_shapes` stay as they are.

    Raises:
        InvalidInputError: `requested_shapes` names no input or contradicts the model, or no size lets the model infer.
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
    remaining_nodes = [index for index in range(len(prepared.graph.nodes)) if index not in prepared.evaluated]
    tried, inferred = list[Shapes](), list[Shapes]()
    weighed = sizes_of_weights(prepared.graph, prepared.nodes, prepared.constants, inputs)
    named = {**weighed, **_named(inputs, requested_shapes)}
    for sizes, bound_sizes in _candidates(prepared, inputs, named):
        shapes = {
            **_all_filled(inputs, sizes, bound_sizes),
            **preset_shapes,
            **requested_shapes,
        }
        if shapes not in tried:
            tried.append(shapes)
            if prepared.inference.agrees(InitialFacts(shapes, prepared.constants, remaining_nodes)):
                if _agrees_as_computed(prepared, shapes):
                    return shapes
                inferred.append(shapes)
    if inferred:
        return inferred[0]
    untyped = next((name for name, value in inputs.items() if value.shape is not None and value.dtype is None), None)
    if untyped is not None:
        raise InvalidModelError(f"input {untyped!r} has no data type that ONNX knows; export the model again")
    raise InvalidInputError(
        f"the model does not say its input sizes and none of the usual ones fits: {_listed(inputs)}; "
        "give them with --shape NAME=1,3,224,224 or input_shapes={name: (…)}"
    )


def _agrees_as_computed(prepared: Prepared, shapes: Shapes) -> bool:
    """Whether no node contradicts what others compute of the shapes alone, and windows fit in what they move over."""
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
    """Raise InvalidInputError if an input cannot have that shape, or is none."""
    if name not in inputs:
        raise InvalidInputError(f"the model has no input {name!r}; its inputs are {list(inputs)}", name=name)
    declared = inputs[name].shape
    fits = declared is None or (
        len(declared) == len(shape)
        and all(not isinstance(want, int) or want == got for want, got in zip(declared, shape, strict=True))
    )
    if not fits or any(dimension < 0 for dimension in shape):
        raise InvalidInputError(
            f"input {name!r} cannot have shape {list(shape)}, the model declares {list(declared or ())}", name=name
        )


def check_known_rank(value: Value, shape: tuple[int, ...] | None) -> None:
    """Raise InvalidInputError if an input is a tensor whose shape neither the model nor the caller gives.

    Args:
        value: the input.
        shape: its shape; None if it is not known.
    """
    if shape is None and value.shape is None and value.dtype is not None and "(" not in value.dtype:
        raise InvalidInputError(
            f"the model does not give the shape of input {value.name!r}, not even its rank; give it with "
            f"--shape {value.name}=1,3,224,224 or input_shapes={{{value.name!r}: (1, 3, 224, 224)}}",
            name=value.name,
        )


def assumed_inputs(graph: Graph, requested_shapes: Shapes) -> tuple[str, ...]:
    """Inputs of a graph whose sizes are open, and not among those that were asked for."""
    values = (graph.value(name) for name in graph.inputs if name not in requested_shapes)
    return tuple(value.name for value in values if value.shape is not None and value.static_shape is None)


def _candidates(
    prepared: Prepared, inputs: Mapping[str, Value], named: Mapping[Dimension, int]
) -> Iterator[tuple[_Sizes, Mapping[Dimension, int]]]:
    """Sizes for open dimensions, and sizes that are known of some."""
    metadata = {entry.key: entry.value for entry in prepared.model.metadata_props}
    stated = tuple(int(number) for number in re.findall(r"\d+", metadata.get("imgsz", "")))
    if stated:
        yield _Sizes(stated, stated), named
    if cached := cache_sizes(prepared.graph, prepared.nodes, list(inputs.values()), named):
        yield _Sizes((1,), (1,)), cached
    yield from ((_Sizes((image,), (other,)), named) for image, other in zip(_IMAGE_SIZES, _OTHER_SIZES, strict=True))
    yield _Sizes(_IMAGE_SIZES[:1], (_SAMPLES,)), named


def _named(inputs: Mapping[str, Value], requested_shapes: Shapes) -> dict[Dimension, int]:
    """Sizes of open dimensions, as the given shapes say them: where they have a name, other inputs may share it."""
    return {
        dimension_at(inputs[name], axis): shape[axis]
        for name, shape in requested_shapes.items()
        for axis, dimension in enumerate(inputs[name].shape or ())
        if not isinstance(dimension, int)
    }


def _all_filled(inputs: Mapping[str, Value], sizes: _Sizes, bound_sizes: Mapping[Dimension, int]) -> Shapes:
    """Every shape with its open dimensions filled, those of one name alike."""
    shaped = {name: value for name, value in inputs.items() if value.shape is not None}
    lengths, firsts = dict[Dimension, int](), dict[Dimension, int]()
    for value in sorted(shaped.values(), key=lambda value: len(value.shape or ()), reverse=True):
        filled, leading_dimensions = _with_sizes(value, sizes, bound_sizes), set[object]()
        for axis, dimension in enumerate(value.shape or ()):
            if isinstance(dimension, str) and leading_dimensions - {dimension}:
                lengths.setdefault(dimension, filled[axis])
            elif isinstance(dimension, str):  # a batch, also where layers come before it
                firsts[dimension] = min(filled[axis], firsts.get(dimension, filled[axis]))
            if not isinstance(dimension, int):
                leading_dimensions.add(dimension)
    return {name: _with_sizes(value, sizes, {**firsts, **lengths, **bound_sizes}) for name, value in shaped.items()}


def _with_sizes(value: Value, all_sizes: _Sizes, bound_sizes: Mapping[Dimension, int]) -> tuple[int, ...]:
    """The shape with its open dimensions filled: from `bound_sizes`, 1 for the first, `all_sizes` for the others."""
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

_ROWS, _CACHES, _NEW = (1, 2), (0, 1, DEFAULT_PAST_LENGTH), (1, 7)
_IN_ROOM = (
    (DEFAULT_PAST_LENGTH // 2, 1),
    (DEFAULT_PAST_LENGTH // 3, 1),
    (0, 7),
    (0, 9),
    (DEFAULT_PAST_LENGTH // 2, 7),
    (DEFAULT_PAST_LENGTH // 3, 7),
)
"""Tokens in a cache with room, and new ones: two of each kind, so that a plan for the first is seen to serve others."""
_PROMPT = 64
"""New tokens of a usual prompt: bounds of a device are some times the largest sizes, and end far below `_LONG`."""
_MANY_ROWS, _LONG = 8, (256, 512, 1024)
"""Tokens that are cached and as many that are new, the fewest first: positions of a model end somewhere, and a plan
that is made behind their end serves nobody, while those before it may be widened."""
_MOST_COMBINED = 3
"""Dimensions that are combined with each other."""
_LARGEST, _MOST_ELEMENTS = 1024, 1 << 24
"""Of a dimension, and of all inputs together, where sizes are doubled."""


def further_shapes(prepared: Prepared, usual: Shapes) -> Iterator[Shapes]:
    """Yield shapes of all inputs, each once, but for the usual ones."""
    inputs = {name: prepared.graph.value(name) for name in usual}
    remaining_nodes = [index for index in range(len(prepared.graph.nodes)) if index not in prepared.evaluated]
    visited_shapes = [usual]
    for sizes in _further_sizes(prepared, list(inputs.values()), _sizes_at(inputs, usual)):
        shapes = {name: _shape(value, usual[name], sizes) for name, value in inputs.items()}
        if shapes not in visited_shapes:
            visited_shapes.append(shapes)
            if prepared.inference.agrees(InitialFacts(shapes, prepared.constants, remaining_nodes)):
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
    for rows, cached, appended in product(_ROWS, _CACHES, _NEW):
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


def _sizes_at(inputs: Mapping[str, Value], shapes: Shapes) -> dict[Dimension, int]:
    return {
        dimension_at(value, axis): shapes[name][axis]
        for name, value in inputs.items()
        for axis, size in enumerate(value.shape or ())
        if not isinstance(size, int)
    }


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
