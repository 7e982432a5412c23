"""Sizes for dimensions that a model leaves open, where nobody said any: tried in a stated order.

1. The model's metadata: `imgsz`, as YOLO exporters write it.
2. Of a model that keeps a cache: one more token behind it, see `caches.py`.
3. Batch (the first dimension) 1, and for the others 224, 320, 640 for images (an input of rank 4 and more), 128 for
   everything else; then smaller powers of two, and at last a second of speech, 16000.

A dimension that shares its name with one of a shape that was given has that size, and one behind the batch that a
weight says has that one (`weighed_sizes.py`). Dimensions of one name have one size: that of a length where it stands
behind another open one in some input. The first sizes with which the model infers without contradiction are
taken, also with what they decide, as how much of a table of positions there is, and where windows of convolutions fit;
where no sizes do so, the first with which it infers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nnadapter.errors import InvalidInputError, InvalidModelError
from nnadapter.onnx.inference import InitialFacts
from nnadapter.onnx.preparation.caches import Dimension, cache_sizes, dimension_at
from nnadapter.onnx.preparation.prepare import Prepared, Shapes, specialize
from nnadapter.onnx.preparation.weighed_sizes import sizes_of_weights
from nnadapter.onnx.preparation.wide_windows import wide_windows
from partition.graph import Graph, Value

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
        filled, leading_dimensions = _filled(value, sizes, bound_sizes), set[object]()
        for axis, dimension in enumerate(value.shape or ()):
            if isinstance(dimension, str) and leading_dimensions - {dimension}:
                lengths.setdefault(dimension, filled[axis])
            elif isinstance(dimension, str):  # a batch, also where layers come before it
                firsts[dimension] = min(filled[axis], firsts.get(dimension, filled[axis]))
            if not isinstance(dimension, int):
                leading_dimensions.add(dimension)
    return {name: _filled(value, sizes, {**firsts, **lengths, **bound_sizes}) for name, value in shaped.items()}


def _filled(value: Value, all_sizes: _Sizes, bound_sizes: Mapping[Dimension, int]) -> tuple[int, ...]:
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
