"""What a server says: metadata of the model, and results as JSON with binary tensors behind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.onnx.signature import Signature
from nnadapter.ray.serving.datatypes import NAMES
from nnadapter.ray.serving.reading import Array
from partition.graph import Value

HEADER_LENGTH = "Inference-Header-Content-Length"
VERSION = "1"
"""Of every model: a server has one."""
Headers = Mapping[str, str]


def model_metadata(name: str, signature: Signature) -> dict[str, Any]:
    """What a client is told of the model."""
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
    """Return the body of an answer, and its headers.

    Args:
        model: its name.
        request_id: which is given back; empty where there was none.
        results: by output.
        binary: outputs that go as bytes.
        device: that the results came from.
    """
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
