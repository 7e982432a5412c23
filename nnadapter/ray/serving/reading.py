"""The body of an infer request -> arrays, every word of it checked.

Source: Open Inference Protocol v2, with its extension for binary tensors: JSON first, as long as a header says, then
the contents of tensors one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from nnadapter.errors import close_names
from nnadapter.ir.operand import array_type_of
from nnadapter.onnx.signature import Signature
from nnadapter.ray.serving import limits
from nnadapter.ray.serving.datatypes import DTYPES, NAMES
from nnadapter.ray.serving.faults import HttpError

Array = np.ndarray[Any, Any]
_MICRO = 1e-6
_TYPES = frozenset({bool, int, float})
"""Of values of a tensor."""
_LONGEST_US = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that was read."""

    id: str
    feed: Mapping[str, Array]
    outputs: tuple[str, ...]
    binary: frozenset[str]
    """Outputs that go back as bytes."""
    timeout: float | None
    """Seconds that it may take."""


def read_request(body: bytes, header_length: str | None, signature: Signature) -> Asked:
    """Return what a request asks for.

    Raises:
        HttpError: it is none, or does not fit the model (400), or its JSON is too long (413).
    """
    text, remaining_bytes = _parts(body, header_length)
    request = _object(_parsed(text), "the request")
    parameters = _object(request.get("parameters", {}), "parameters")
    feed = _feed(_list(request, "inputs"), remaining_bytes, signature)
    outputs, binary = _outputs(request, parameters, signature)
    name = request.get("id", "")
    if not isinstance(name, str) or len(name) > limits.NAME_LENGTH:
        raise HttpError(400, f"id is a text of at most {limits.NAME_LENGTH} characters")
    return Asked(id=name, feed=feed, outputs=outputs, binary=binary, timeout=_timeout(parameters))


def _parts(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    length = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or len(header_length) > 12 or int(header_length) > len(body):
            raise HttpError(
                400,
                f"Inference-Header-Content-Length is {header_length[:40]!r}, and the body has {len(body)} bytes",
            )
        length = int(header_length)
    if length > limits.JSON_BYTES:
        raise HttpError(
            413, f"the JSON has {length} bytes, and may have {limits.JSON_BYTES}; send large tensors as binary data"
        )
    return body[:length], memoryview(body)[length:]


def _parsed(text: bytes) -> object:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is no JSON: {' '.join(str(error).split())[:200]}") from error


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON; send it as binary data")


def _object(value: object, label: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise HttpError(400, f"{label} is an object, got {type(value).__name__}")
    return value


def _list(request: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = request.get(key)
    if not isinstance(value, list) or not 0 < len(value) <= limits.TENSORS:
        raise HttpError(400, f"{key!r} is a list of 1 to {limits.TENSORS} tensors")
    return value


def _feed(rows: Sequence[Any], remaining_bytes: memoryview, signature: Signature) -> dict[str, Array]:
    feed: dict[str, Array] = {}
    for row in rows:
        tensor = _object(row, "an input")
        name = tensor.get("name")
        if not isinstance(name, str) or name not in signature.by_name:
            raise HttpError(400, f"the model has no input {str(name)[:100]!r}; {close_names(name, signature.by_name)}")
        if name in feed:
            raise HttpError(400, f"input {name!r} is given twice")
        feed[name], remaining_bytes = _tensor(name, tensor, remaining_bytes, signature)
    if len(remaining_bytes):
        raise HttpError(
            400, f"{len(remaining_bytes)} bytes stand behind the last tensor; binary_data_size says how long each is"
        )
    return feed


def _tensor(
    name: str, tensor: Mapping[str, Any], remaining_bytes: memoryview, signature: Signature
) -> tuple[Array, memoryview]:
    expected_dtype = signature.by_name[name].dtype or ""
    datatype = tensor.get("datatype")
    if datatype != NAMES.get(expected_dtype):
        raise HttpError(
            400,
            f"input {name!r} takes datatype {NAMES.get(expected_dtype, expected_dtype)!r}, got {str(datatype)[:40]!r}",
        )
    shape, dtype = _shape(name, tensor), array_type_of(DTYPES[str(datatype)])
    parameters = _object(tensor.get("parameters", {}), f"parameters of input {name!r}")
    if any(key.startswith("shared_memory") for key in parameters):
        raise HttpError(400, "this server has no shared memory; send tensors in the request")
    size = parameters.get("binary_data_size")
    if size is None:
        return _from_json(name, tensor, shape, dtype), remaining_bytes
    if "data" in tensor:
        raise HttpError(400, f"input {name!r} has both data and binary_data_size")
    expected = prod(shape) * dtype.itemsize
    if type(size) is not int or size != expected or size > len(remaining_bytes):
        raise HttpError(
            400,
            f"input {name!r} of shape {list(shape)} has {expected} bytes; binary_data_size says {str(size)[:40]}, and "
            f"{len(remaining_bytes)} are left in the body",
        )
    stored = np.dtype(np.uint8) if dtype.kind == "b" else dtype  # a byte that is neither 0 nor 1 is true
    return np.frombuffer(remaining_bytes[:size], stored).astype(dtype, copy=False).reshape(shape), remaining_bytes[
        size:
    ]


def _shape(name: str, tensor: Mapping[str, Any]) -> tuple[int, ...]:
    shape = tensor.get("shape")
    is_shape = isinstance(shape, list) and len(shape) <= limits.DIMENSIONS
    if not is_shape or not all(type(size) is int and 0 <= size < 1 << 31 for size in shape or ()):
        raise HttpError(400, f"the shape of input {name!r} is a list of whole numbers, got {str(shape)[:100]}")
    sizes = tuple(shape or ())
    if prod(size or 1 for size in sizes) > limits.ELEMENTS:  # numpy counts so, where one of them is 0 as well
        raise HttpError(400, f"the shape of input {name!r} is too large, {str(shape)[:100]}")
    return sizes


def _from_json(name: str, tensor: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    data = tensor.get("data")
    if not isinstance(data, list):
        raise HttpError(400, f"input {name!r} has no data: a list of numbers, or binary_data_size in its parameters")
    # As objects first: where numpy chooses a type, each of many texts has the length of the longest.
    values = np.array(data, object).reshape(-1).tolist()
    kinds = set(map(type, values))
    if list in kinds:
        raise HttpError(400, f"the data of input {name!r} is no tensor: its lists differ in length")
    if len(values) != prod(shape):
        raise HttpError(400, f"input {name!r} of shape {list(shape)} has {prod(shape)} numbers, and {len(values)} came")
    array = np.array(values if kinds <= _TYPES else [None])
    with np.errstate(over="ignore"):
        cast_array = array.astype(dtype) if not values or _can_hold(array, dtype, kinds) else None
    if cast_array is None or (dtype.kind not in "biu" and not np.isfinite(cast_array).all()):
        raise HttpError(400, f"the data of input {name!r} holds what is no {NAMES.get(dtype.name, dtype.name)}")
    return cast_array.reshape(shape)


def _can_hold(array: Array, dtype: np.dtype[Any], kinds: set[type]) -> bool:
    """Whether what JSON said are values of a data type."""
    if dtype.kind == "b" or bool in kinds:
        return dtype.kind == "b" and kinds == {bool}
    if dtype.kind not in "iu":
        return str(array.dtype.kind) in "iuf"
    if array.dtype.kind not in "iu":
        return False
    bounds = np.iinfo(dtype)
    return bool(bounds.min <= int(array.min()) and int(array.max()) <= bounds.max)


def _outputs(
    request: Mapping[str, Any], parameters: Mapping[str, Any], signature: Signature
) -> tuple[tuple[str, ...], frozenset[str]]:
    all_binary = _flag(parameters, "binary_data_output", default=False)
    rows = _list(request, "outputs") if "outputs" in request else [{"name": name} for name in signature.output_names]
    binary_flags: dict[str, bool] = {}
    for row in rows:
        tensor = _object(row, "an output")
        name, output_parameters = tensor.get("name"), _object(tensor.get("parameters", {}), "parameters of an output")
        if not isinstance(name, str) or name not in signature.output_names:
            raise HttpError(
                400, f"the model has no output {str(name)[:100]!r}; {close_names(name, signature.output_names)}"
            )
        if name in binary_flags:
            raise HttpError(400, f"output {name!r} is asked for twice")
        if output_parameters.get("classification") or any(key.startswith("shared_memory") for key in output_parameters):
            raise HttpError(400, f"output {name!r} is asked for in a way that this server has not: tensors alone")
        binary_flags[name] = _flag(output_parameters, "binary_data", default=all_binary)
    return tuple(binary_flags), frozenset(name for name, binary in binary_flags.items() if binary)


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise HttpError(400, f"parameter {name!r} is true or false, got {str(value)[:40]!r}")
    return value


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    """Microseconds, as clients say it; 0 for none."""
    value = parameters.get("timeout", 0)
    if type(value) is not int or value < 0:
        raise HttpError(400, f"parameter 'timeout' is a number of microseconds, got {str(value)[:40]!r}")
    return min(value, _LONGEST_US) * _MICRO or None
