"""Open Inference Protocol v2: routes, errors, and the contents of requests and responses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from math import prod
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import numpy as np

from nnadapter.errors import CancelledError, InvalidInputError, NNAdapterError, close_names, describe
from nnadapter.ir.operand import Array, array_type_of
from nnadapter.onnx.signature import Signature
from nnadapter.records import dataclass
from partition.graph import Value

BODY_BYTES = 64 << 20
JSON_BYTES = 8 << 20
"""Maximum bytes of JSON in a body. Parsed JSON takes many times more memory."""
WAITING_BYTES = 1 << 30
"""Maximum bytes of all queued requests of a replica."""
TENSORS = 256
DIMENSIONS = 64
NAME_LENGTH = 1024
ELEMENTS = 1 << 48
"""Maximum product of a tensor's nonzero sizes, as in numpy."""
BODY_SECONDS = 60.0
"""Maximum seconds to receive a body, because slow clients occupy the queue."""


NAMES: Mapping[str, str] = MappingProxyType(
    {
        "bool": "BOOL",
        "uint8": "UINT8",
        "uint16": "UINT16",
        "uint32": "UINT32",
        "uint64": "UINT64",
        "int8": "INT8",
        "int16": "INT16",
        "int32": "INT32",
        "int64": "INT64",
        "float16": "FP16",
        "bfloat16": "BF16",
        "float32": "FP32",
        "float64": "FP64",
    }
)
"""Data types -> their names in the protocol. Others (strings, sequences) are not served."""
DTYPES: Mapping[str, str] = MappingProxyType({name: dtype for dtype, name in NAMES.items()})


class HttpError(Exception):
    """Error response to a request; internal to this package."""

    def __init__(self, status: int, message: str, *, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


def http_error(error: BaseException) -> HttpError:
    """Return the HTTP error for an exception."""
    if isinstance(error, HttpError):
        return error
    table: tuple[tuple[type[BaseException], int], ...] = (
        (InvalidInputError, 400),
        (CancelledError, 504),
        (NNAdapterError, 503),
    )
    for kind, status in table:
        if isinstance(error, kind):
            return HttpError(status, describe(error))
    return HttpError(500, f"the server failed: {type(error).__name__}; see its log")


_MICRO = 1e-6
_TYPES = frozenset({bool, int, float})
_LONGEST_US = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """Inference request after parsing."""

    id: str
    feed: Mapping[str, Array]
    outputs: tuple[str, ...]
    binary: frozenset[str]
    timeout: float | None


def read_request(body: bytes, header_length: str | None, signature: Signature) -> InferenceRequest:
    """Parse a request. Raises HttpError 400 if it is invalid, 413 if its JSON is too long."""
    text, remaining_bytes = _parts(body, header_length)
    request = _object(_parsed(text), "the request")
    parameters = _object(request.get("parameters", {}), "parameters")
    feed = _feed(_list(request, "inputs"), remaining_bytes, signature)
    outputs, binary = _outputs(request, parameters, signature)
    name = request.get("id", "")
    if not isinstance(name, str) or len(name) > NAME_LENGTH:
        raise HttpError(400, f"id must be a string of at most {NAME_LENGTH} characters")
    return InferenceRequest(id=name, feed=feed, outputs=outputs, binary=binary, timeout=_timeout(parameters))


def _parts(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    length = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or len(header_length) > 12 or int(header_length) > len(body):
            raise HttpError(
                400,
                f"Inference-Header-Content-Length is {header_length[:40]!r}, but the body has {len(body)} bytes",
            )
        length = int(header_length)
    if length > JSON_BYTES:
        raise HttpError(413, f"the JSON has {length} bytes, expected at most {JSON_BYTES}; send tensors as binary data")
    return body[:length], memoryview(body)[length:]


def _parsed(text: bytes) -> object:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {' '.join(str(error).split())[:200]}") from error


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number; send it as binary data")


def _object(value: object, label: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise HttpError(400, f"{label} must be an object, got {type(value).__name__}")
    return value


def _list(request: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = request.get(key)
    if not isinstance(value, list) or not 0 < len(value) <= TENSORS:
        raise HttpError(400, f"{key!r} must be a list of 1 to {TENSORS} tensors")
    return value


def _feed(rows: Sequence[Any], remaining_bytes: memoryview, signature: Signature) -> dict[str, Array]:
    feed: dict[str, Array] = {}
    for row in rows:
        tensor = _object(row, "an input")
        name = tensor.get("name")
        if not isinstance(name, str) or name not in signature.by_name:
            raise HttpError(400, f"the model has no input {str(name)[:100]!r}; {close_names(name, signature.by_name)}")
        if name in feed:
            raise HttpError(400, f"input {name!r} appears twice")
        feed[name], remaining_bytes = _tensor(name, tensor, remaining_bytes, signature)
    if len(remaining_bytes):
        raise HttpError(
            400, f"{len(remaining_bytes)} bytes follow the last tensor; binary_data_size must be the length of each"
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
            f"input {name!r} of shape {list(shape)} has {expected} bytes; binary_data_size is {str(size)[:40]}, and "
            f"{len(remaining_bytes)} remain in the body",
        )
    stored = np.dtype(np.uint8) if dtype.kind == "b" else dtype  # any nonzero byte is true
    return np.frombuffer(remaining_bytes[:size], stored).astype(dtype, copy=False).reshape(shape), remaining_bytes[
        size:
    ]


def _shape(name: str, tensor: Mapping[str, Any]) -> tuple[int, ...]:
    shape = tensor.get("shape")
    is_shape = isinstance(shape, list) and len(shape) <= DIMENSIONS
    if not is_shape or not all(type(size) is int and 0 <= size < 1 << 31 for size in shape or ()):
        raise HttpError(400, f"the shape of input {name!r} must be a list of integers, got {str(shape)[:100]}")
    sizes = tuple(shape or ())
    if prod(size or 1 for size in sizes) > ELEMENTS:  # numpy has the same limit, even if a size is 0
        raise HttpError(400, f"the shape of input {name!r} is too large, {str(shape)[:100]}")
    return sizes


def _from_json(name: str, tensor: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    data = tensor.get("data")
    if not isinstance(data, list):
        raise HttpError(400, f"input {name!r} has no data; pass numbers, or binary_data_size in its parameters")
    # As objects first: an array of strings would store each at the length of the longest.
    values = np.array(data, object).reshape(-1).tolist()
    kinds = set(map(type, values))
    if list in kinds:
        raise HttpError(400, f"the data of input {name!r} is not a tensor: its lists differ in length")
    if len(values) != prod(shape):
        raise HttpError(400, f"input {name!r} of shape {list(shape)} needs {prod(shape)} numbers, got {len(values)}")
    array = np.array(values if kinds <= _TYPES else [None])
    with np.errstate(over="ignore"):
        cast_array = array.astype(dtype) if not values or _can_hold(array, dtype, kinds) else None
    if cast_array is None or (dtype.kind not in "biu" and not np.isfinite(cast_array).all()):
        raise HttpError(400, f"the data of input {name!r} has values that are not {NAMES.get(dtype.name, dtype.name)}")
    return cast_array.reshape(shape)


def _can_hold(array: Array, dtype: np.dtype[Any], kinds: set[type]) -> bool:
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
            raise HttpError(400, f"output {name!r} is requested twice")
        if output_parameters.get("classification") or any(key.startswith("shared_memory") for key in output_parameters):
            raise HttpError(400, f"output {name!r} is requested in an unsupported form; only tensors are supported")
        binary_flags[name] = _flag(output_parameters, "binary_data", default=all_binary)
    return tuple(binary_flags), frozenset(name for name, binary in binary_flags.items() if binary)


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise HttpError(400, f"parameter {name!r} must be true or false, got {str(value)[:40]!r}")
    return value


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    value = parameters.get("timeout", 0)
    if type(value) is not int or value < 0:
        raise HttpError(400, f"parameter 'timeout' must be a number of microseconds, got {str(value)[:40]!r}")
    return min(value, _LONGEST_US) * _MICRO or None


HEADER_LENGTH = "Inference-Header-Content-Length"
VERSION = "1"
Headers = Mapping[str, str]


def model_metadata(name: str, signature: Signature) -> dict[str, Any]:
    """Return the metadata of the model for clients."""
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "onnx_nnadapter",
        "inputs": [_described(value) for value in signature.inputs],
        "outputs": [_described(value) for value in signature.outputs],
    }


def _described(value: Value) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in value.shape or ()]
    return {"name": value.name, "datatype": NAMES.get(value.dtype or "", "BYTES"), "shape": shape}


def written(
    model: str, request_id: str, results: Mapping[str, Array], binary: frozenset[str], device: str
) -> tuple[bytes, Headers]:
    """Return the body and headers of a response, with outputs in `binary` as bytes."""
    blobs: list[bytes] = []
    outputs = [_output(name, np.ascontiguousarray(array), name in binary, blobs) for name, array in results.items()]
    response = {"model_name": model, "model_version": VERSION, "parameters": {"devices": device}, "outputs": outputs}
    text = json.dumps({**({"id": request_id} if request_id else {}), **response}).encode()
    if not binary:
        return text, {"content-type": "application/json"}
    return b"".join((text, *blobs)), {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(text))}


def _output(name: str, array: Array, is_binary: bool, blobs: list[bytes]) -> dict[str, Any]:
    shape: Sequence[int] = array.shape
    metadata = {"name": name, "datatype": NAMES.get(array.dtype.name, "BYTES"), "shape": list(shape)}
    if not is_binary:
        wide = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        return {**metadata, "data": wide.reshape(-1).tolist()}
    blobs.append(array.tobytes())
    return {**metadata, "parameters": {"binary_data_size": array.nbytes}}


class Route(Enum):
    """Resource that a URL names."""

    SERVER = auto()
    LIVE = auto()
    READY = auto()
    MODEL = auto()
    INFER = auto()
    REPORT = auto()
    REPORT_PAGE = auto()


_OF_SERVER = {"/v2": Route.SERVER, "/v2/health/live": Route.LIVE, "/v2/health/ready": Route.READY}
_OF_MODEL = {
    "": ("GET", Route.MODEL),
    "/ready": ("GET", Route.READY),
    "/infer": ("POST", Route.INFER),
    "/report": ("GET", Route.REPORT),
    "/report.html": ("GET", Route.REPORT_PAGE),
}
_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer|/report|/report\.html)?")
_SHOWN = 100


def route_of(method: str, path: str, model: str) -> Route:
    """Return the resource at a path. Raises HttpError 404 or 405."""
    path = path.rstrip("/")
    match = _MODEL.fullmatch(path)
    if match is None:
        if path not in _OF_SERVER:
            raise HttpError(404, f"there is nothing at {path[:_SHOWN]!r}; the model is at '/v2/models/{model}'")
        expected_method, route = "GET", _OF_SERVER[path]
    else:
        name, version, subpath = match.groups()
        if unquote(name) != model:
            raise HttpError(404, f"there is no model {unquote(name)[:_SHOWN]!r}; this server has {model!r}")
        if version not in (None, VERSION):
            raise HttpError(404, f"model {model!r} has only version {VERSION!r}, not {version[:_SHOWN]!r}")
        expected_method, route = _OF_MODEL[subpath or ""]
    if method != expected_method and not (expected_method == "GET" and method == "HEAD"):
        raise HttpError(405, f"{path[:_SHOWN]!r} accepts {expected_method}, not {method[:_SHOWN]}")
    return route
