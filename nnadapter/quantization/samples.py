"""Sample data: feeds from a folder, an .npz file, an iterable or a Ray dataset, checked against a model."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from nnadapter.candidates.pictures import PICTURE_SUFFIXES, picture_array
from nnadapter.errors import CalibrationDataError, InvalidInputError, near_names
from nnadapter.ir.operand import Array
from nnadapter.onnx.signature import Signature
from partition.graph import Value

Data = str | os.PathLike[str] | Iterable[Any]
Feed = Mapping[str, Array]

_FILES = (".npz", ".npy", *PICTURE_SUFFIXES)


class Sample(NamedTuple):
    """Feed, and the item of the data that it comes from."""

    item: Any
    """Item of an iterable, row of a dataset, arrays of an .npz file, or path of another file."""
    feed: Feed


def read_samples(data: Data, signature: Signature, most: int | None = None) -> tuple[Sample, ...]:
    """Return samples for a model, at most `most` of them.

    Args:
        data: one of

            - a folder of .npz files (one feed each), .npy files or pictures (of the only input), in alphabetical order;
            - an .npz file: input name -> array, one feed or several stacked along an additional first axis; further
              arrays, such as labels, are allowed;
            - an .npy file or a picture;
            - an iterable of mappings from input name to array, of arrays for the only input, or of pairs of such a feed
              and anything else, such as a label;
            - a Ray dataset with a column per input; further columns, such as labels, are allowed.
        signature: signature of the model.
        most: maximum number of feeds; None for all.

    Raises:
        CalibrationDataError: there is no feed, a file cannot be read, or a feed does not fit.
    """
    feeds = _from_path(Path(data), signature) if isinstance(data, (str, os.PathLike)) else _from_items(data, signature)
    with closing(feeds):  # Ray hangs at exit if an iterator of a dataset is still open
        checked = tuple(Sample(item, _checked(place, feed, signature)) for place, item, feed in islice(feeds, most))
    if not checked:
        place = repr(os.fspath(data)) if isinstance(data, (str, os.PathLike)) else "the data"
        raise CalibrationDataError(
            f"{place} has no sample; give feeds, or a folder of files that end in {', '.join(_FILES)}"
        )
    return checked


def _from_items(data: Iterable[Any], signature: Signature) -> Generator[tuple[str, Any, Any], None, None]:
    if isinstance(data, Mapping):
        raise CalibrationDataError("the data is one feed; give a list of feeds, as in [feed]")
    if not isinstance(data, Iterable):
        raise CalibrationDataError(
            f"the data is {type(data).__name__}, expected a path, an iterable of feeds, or a Ray dataset"
        )
    items = data.iter_rows() if hasattr(data, "iter_rows") else data  # of a Ray dataset
    for number, item in enumerate(items):
        place = f"sample {number}"
        feed = item[0] if isinstance(item, tuple) and len(item) == 2 else item
        if items is not data:
            feed = {name: item[name] for name in signature.by_name if name in item} or item
        yield place, item, feed if isinstance(feed, Mapping) else {_only_input(signature, place).name: feed}


def _from_path(path: Path, signature: Signature) -> Generator[tuple[str, Any, Any], None, None]:
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.suffix.lower() in _FILES:
                yield from _from_file(file, signature)
        return
    if not path.exists():
        raise CalibrationDataError(f"{str(path)!r} does not exist; give a folder, or a file of samples")
    if path.suffix.lower() not in _FILES:
        raise CalibrationDataError(f"{str(path)!r} is no folder, and ends in none of {', '.join(_FILES)}; convert it")
    yield from _from_file(path, signature)


def _from_file(file: Path, signature: Signature) -> Iterator[tuple[str, Any, Any]]:
    place = repr(str(file))
    if file.suffix.lower() in PICTURE_SUFFIXES:
        value = _only_input(signature, place)
        shape = tuple(size if isinstance(size, int) else 1 for size in value.shape or ())
        if any(not isinstance(size, int) for size in (value.shape or ())[1:]):
            raise CalibrationDataError(
                f"{place} is a picture, and input {value.name!r} has dynamic dimensions {list(value.shape or ())}; "
                "give .npy files of the sizes that the model gets"
            )
        try:
            yield place, file, {value.name: picture_array(str(file), value.name, value.dtype, shape)}
        except InvalidInputError as error:
            raise CalibrationDataError(str(error), name=error.name) from error
        return
    try:
        loaded = np.load(file, allow_pickle=False)
        arrays = dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
    except (OSError, ValueError, EOFError, BadZipFile, MemoryError) as error:
        raise CalibrationDataError(f"{place} cannot be read as numbers; write it with numpy.save or savez") from error
    if isinstance(arrays, dict):
        yield from _feeds_in(arrays, place, signature)
    else:
        yield place, file, {_only_input(signature, place).name: arrays}


def _feeds_in(arrays: Mapping[str, Array], place: str, signature: Signature) -> Iterator[tuple[str, Any, Any]]:
    inputs = {name: array for name, array in arrays.items() if name in signature.by_name}
    ranks = {name: None if (shape := signature.by_name[name].shape) is None else len(shape) for name in inputs}
    stacked = [name for name, rank in ranks.items() if rank is not None and inputs[name].ndim == rank + 1]
    if not stacked or len(stacked) < len(inputs):
        yield place, arrays, inputs or arrays
        return
    counts = {len(array) for array in arrays.values()}
    if len(counts) > 1:
        sizes = ", ".join(f"{name!r}: {len(array)}" for name, array in arrays.items())
        raise CalibrationDataError(
            f"the arrays in {place} hold different numbers of samples ({sizes}); make them equal"
        )
    for number in range(counts.pop()):
        item = {name: array[number] for name, array in arrays.items()}
        yield f"sample {number} of {place}", item, {name: item[name] for name in inputs}


def _only_input(signature: Signature, place: str) -> Value:
    if len(signature.inputs) != 1:
        names = [value.name for value in signature.inputs]
        raise CalibrationDataError(
            f"{place} is one array, and the model has the inputs {names}; give a mapping, or an .npz file, with an "
            "array for each"
        )
    return signature.inputs[0]


def _checked(place: str, feed: Any, signature: Signature) -> Feed:
    unknown = next((name for name in feed if name not in signature.by_name), None)
    if unknown is not None:
        raise CalibrationDataError(
            f"{place} has {unknown!r}, which is no input of the model; its inputs are {list(signature.by_name)}"
            f"{near_names(str(unknown), signature.by_name, '; ')}",
            name=str(unknown),
        )
    try:
        checked = signature.check_feed(feed)
    except InvalidInputError as error:
        raise CalibrationDataError(f"{place} does not fit the model: {error}", name=error.name) from error
    for name, array in checked.items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CalibrationDataError(f"input {name!r} of {place} is not finite; repair or remove it", name=name)
    return checked


def held_out(count: int, least: int = 10) -> tuple[list[int], list[int]]:
    """Return the positions of used and of held-out samples. Every fifth is held out if there are at least `least`."""
    outside = range(4, count, 5) if count >= least else range(0)
    return [at for at in range(count) if at not in outside], list(outside)
