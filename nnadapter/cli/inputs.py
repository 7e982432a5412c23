"""Model inputs from `--input` and `--shape`: arrays from files, pictures or random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnadapter.candidates.conversions import SEED, feed_for, prepare, random_array
from nnadapter.cli.output import progress
from nnadapter.cli.parameters import Shapes
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.errors import InvalidInputError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.ir.operand import Array
from nnadapter.onnx.files import load_model
from nnadapter.onnx.signature import filled
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options
from nnadapter.process.packages import require_extra
from partition.graph import Value

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
_MODES = {1: "L", 3: "RGB"}
"""Channels -> Pillow's name of the color mode."""


def picture_array(path: str, name: str, dtype: str | None, shape: Sequence[int]) -> Array:
    """Return the picture at `path` as an array of `dtype` and `shape`.

    1. It is turned upright (Exif) and made RGB for 3 channels, gray for 1.
    2. It is resized, bilinearly and without regard to its proportions, to the input's height and width.
    3. It is scaled from 0..255 to 0..1, unless the input is uint8, which takes 0..255 as it is.
    4. It is laid out as [N, C, H, W] or [N, H, W, C], whichever `shape` is, and repeated over N.

    Raises:
        InvalidInputError: the input is no picture, or the file cannot be read.
        MissingExtraError: Pillow is not installed.
    """
    if dtype not in ("float32", "float16", "float64", "uint8"):
        raise InvalidInputError(
            f"input {name!r} is {dtype}, a picture needs floats or uint8; give a .npy file", name=name
        )
    channels, height, width, channels_last = _layout(name, shape)
    pixels = _pixels(path, name, _MODES[channels], (width, height)).reshape(height, width, channels)
    scaled = pixels if dtype == "uint8" else (pixels.astype(np.float32) / 255).astype(dtype)
    laid_out = scaled if channels_last else scaled.transpose(2, 0, 1)
    return np.ascontiguousarray(np.broadcast_to(laid_out, tuple(shape)))


def _layout(name: str, shape: Sequence[int]) -> tuple[int, int, int, bool]:
    """Channels, height, width, and whether channels come last."""
    if len(shape) == 4 and shape[1] in _MODES:
        return shape[1], shape[2], shape[3], False
    if len(shape) == 4 and shape[3] in _MODES:
        return shape[3], shape[1], shape[2], True
    raise InvalidInputError(
        f"input {name!r} of shape {list(shape)} takes no picture: expected [N, C, H, W] or [N, H, W, C] with 1 or 3 "
        "channels; give a .npy file, or the shape with --shape",
        name=name,
    )


def _pixels(path: str, name: str, mode: str, size: tuple[int, int]) -> Array:
    require_extra("demo", f"input {name!r}, a picture,")
    from PIL import Image, ImageOps

    if not all(size):
        raise InvalidInputError(f"input {name!r} is {size[0]} by {size[1]} pixels: nothing to resize to", name=name)
    try:
        with Image.open(path) as picture:
            upright = ImageOps.exif_transpose(picture).convert(mode)
            return np.asarray(upright.resize(size, Image.Resampling.BILINEAR))
    except FileNotFoundError as error:
        raise InvalidInputError(f"file {path!r} of input {name!r} does not exist; check the path", name=name) from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidInputError(
            f"file {path!r} of input {name!r} cannot be read as a picture: {error}", name=name
        ) from error


RANDOM = "random"
_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Feed:
    """Arrays by input name, and where each comes from."""

    arrays: Mapping[str, Array]
    sources: Mapping[str, str]
    """A file, or `random`."""


def converted(model: str, options: Options) -> Any:
    """Return MODEL as a session takes it; one of Paddle's or PyTorch's is converted here, once for a command.

    Raises:
        MissingExtraError, ModelFileError, InvalidOptionError, InvalidModelError: see `load_named`, `onnx_of`.
    """
    if optional_part("is_torch_module_name")(model):
        with progress("exporting from PyTorch"):
            return optional_part("torch_module_from_name")(model)
    if kind_of(model) is not SourceKind.PADDLE:
        return model
    with progress("converting from Paddle"):
        return optional_part("paddle_onnx_file")(model, options)


def feed_of(model: Any, shapes: Shapes, sources: Mapping[str, str]) -> Feed:
    """Return an array for every input of `model` that must be fed, and for those in `sources`.

    Args:
        model: as `converted` returns it.
        shapes: shapes of inputs whose sizes the model leaves open; arrays from files have their own.
        sources: input name -> `.npy` file, picture, or `random`, which is also what is taken for the others.

    Raises:
        InvalidModelError, ModelFileError: the model cannot be read or contradicts itself.
        InvalidInputError: an input is not the model's, a file cannot be read, or a shape does not fit.
    """
    if kind_of(model) is SourceKind.COMPILED:
        return _feed_of_file(CompiledFile(model), shapes, sources)
    prepared = prepare(load_model(model))
    _check_names(prepared.graph.inputs, sources)
    loaded = {name: _load(name, source) for name, source in sources.items() if Path(source).suffix == ".npy"}
    known_shapes = {**shapes, **{name: array.shape for name, array in loaded.items()}}
    _check_agree(shapes, known_shapes)

    make = partial(_load_or_generate, loaded, sources)
    arrays = feed_for(prepared, known_shapes, make=make, besides=sources)
    return Feed(arrays, {name: sources.get(name, RANDOM) for name in arrays})


def _feed_of_file(file: CompiledFile, shapes: Shapes, sources: Mapping[str, str]) -> Feed:
    """See `feed_of`; sizes are those that the file was compiled for first, where nothing says others."""
    values = file.signature.by_name
    _check_names([*values], sources)
    loaded = {name: _load(name, source) for name, source in sources.items() if Path(source).suffix == ".npy"}
    known_shapes = {**shapes, **{name: array.shape for name, array in loaded.items()}}
    _check_agree(shapes, known_shapes)
    every, generator = _completed(known_shapes, values, file.shapes(file.message.plans[0])), np.random.default_rng(SEED)
    fed = dict.fromkeys([*(value.name for value in file.signature.inputs), *sources])
    arrays = {name: _load_or_generate(loaded, sources, values[name], every[name], generator) for name in fed}
    return Feed(arrays, {name: sources.get(name, RANDOM) for name in arrays})


def _completed(shapes: Shapes, values: Mapping[str, Value], first: Mapping[str, Any]) -> Mapping[str, Any]:
    """The shapes of all inputs: a dimension of a name is as large as another of that name, and sums are those of names.

    Args:
        shapes: shapes of some inputs.
        values: the inputs as the model declares them.
        first: shapes of all inputs, where nothing says others.
    """
    explicit_sizes = _sizes_by_name(shapes, values)
    sizes = {**_sizes_by_name(first, values), **explicit_sizes}

    def size(dimension: object, otherwise: int) -> int:
        if not isinstance(dimension, str) or dimension in explicit_sizes:
            return explicit_sizes.get(dimension, otherwise)
        terms = [int(term) if term.isdigit() else sizes.get(term) for term in dimension.split(" + ")]
        resolved_terms = [term for term in terms if term is not None]
        return sum(resolved_terms) if len(resolved_terms) == len(terms) else otherwise

    followed = {
        name: shape if shape is None else tuple(map(size, values[name].shape or shape, shape))
        for name, shape in first.items()
    }
    return {**followed, **shapes}


def _sizes_by_name(shapes: Mapping[str, Any], values: Mapping[str, Value]) -> dict[object, int]:
    return {
        dimension: size
        for name, shape in shapes.items()
        if name in values and shape is not None
        for dimension, size in zip(values[name].shape or (), shape, strict=False)
        if isinstance(dimension, str)
    }


def _load_or_generate(
    loaded: Mapping[str, Array],
    sources: Mapping[str, str],
    value: Value,
    shape: tuple[int, ...] | None,
    generator: np.random.Generator,
) -> Array:
    array = loaded.get(value.name)
    contents = _generated_input(value, sources.get(value.name, RANDOM), shape, generator) if array is None else array
    return _named_type(contents, value.dtype)


def _generated_input(value: Value, source: str, shape: tuple[int, ...] | None, generator: np.random.Generator) -> Array:
    if source == RANDOM:
        return random_array(value, shape, generator)
    if Path(source).suffix.lower() in PICTURE_SUFFIXES:
        return picture_array(source, value.name, value.dtype, shape or ())
    number = number_of(source)
    if number is not None:
        return filled(value, number, shape)
    raise InvalidInputError(
        f"input {value.name!r} is given as {source!r}, which is neither a .npy file, a picture "
        f"({', '.join(PICTURE_SUFFIXES)}), a number, true or false, nor the word random",
        name=value.name,
    )


def number_of(source: str) -> bool | int | float | None:
    """What a source says that all elements of an input are; None where it is no number."""
    if source in _TRUTHS:
        return _TRUTHS[source]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(source)
    return None


def values_of(sources: Mapping[str, str]) -> dict[str, Any]:
    """Return what inputs hold by files and numbers; what is random is left out.

    Raises:
        InvalidInputError: a file cannot be read, or a source is none of these.
    """
    values: dict[str, Any] = {}
    for name, source in sources.items():
        value = _load(name, source) if Path(source).suffix == ".npy" else number_of(source)
        if value is None and source != RANDOM:
            raise InvalidInputError(
                f"input {name!r} is given as {source!r}, which is neither a .npy file, a number, true or false, nor "
                "the word random",
                name=name,
            )
        values |= {} if value is None else {name: value}
    return values


def _named_type(array: Array, dtype: str | None) -> Array:
    """The array with the input's own type, if it is one that .npy files know the size of alone, such as bfloat16."""
    if array.dtype.kind != "V" or dtype is None or np.dtype(dtype).itemsize != array.dtype.itemsize:
        return array
    return array.view(np.dtype(dtype))


def _load(name: str, path: str) -> Array:
    try:
        with Path(path).open("rb") as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            return array
    except FileNotFoundError as error:
        raise InvalidInputError(f"file {path!r} of input {name!r} does not exist; check the path", name=name) from error
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise InvalidInputError(
            f"file {path!r} of input {name!r} cannot be read as .npy: {error}; write it with numpy.save", name=name
        ) from error


def _check_names(names: Sequence[str], sources: Mapping[str, str]) -> None:
    for name in sources:
        if name not in names:
            raise InvalidInputError(f"the model has no input {name!r}; its inputs are {list(names)}", name=name)


def _check_agree(shapes: Shapes, known_shapes: Shapes) -> None:
    for name, shape in shapes.items():
        if known_shapes[name] != shape:
            raise InvalidInputError(
                f"input {name!r} has shape {list(known_shapes[name])} in its file and {list(shape)} in --shape; "
                "leave --shape out",
                name=name,
            )
