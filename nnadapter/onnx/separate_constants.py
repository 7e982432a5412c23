"""Serialized models without their large constants, and the contents of these beside them.

The model says of each that it is external. ONNX Runtime takes such contents by their address, so that whoever keeps
them elsewhere, mapped and shared, needs neither copies nor onnx.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nnadapter.ir.operand import Array
from nnadapter.onnx.wire_format import BYTES, GRAPH, INITIALIZER, NUMBER, RAW_DATA, fields, rewritten, varint_bytes
from partition.graph import DTYPE_OF_ELEMENT_TYPE, ITEMSIZE_OF_DTYPE

if TYPE_CHECKING:
    import onnx


_LEAST_BYTES = 1 << 10
"""From this size on constants are separate: of smaller ones, shapes among them, contents decide something."""
_BY_ADDRESS = frozenset(
    ("float16", "float32", "float64", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
)
"""Data types that ONNX Runtime's Python interface takes the address of."""
_NAME = 8 << 3 | BYTES
"""The tag of the name in TensorProto."""
_OF_PLACES = (13 << 3 | BYTES, 14 << 3 | NUMBER)
"""In TensorProto, the tags of `external_data` and `data_location`."""
LOCATION = "compiled"
"""Where the model says that they lie; nobody opens it."""


class SeparateTensor(NamedTuple):
    """A constant that does not stand in its model."""

    name: str
    dtype: str
    dimensions: tuple[int, ...]
    contents: Array
    """Its bytes, flat, as ONNX lays them out."""


def separated(model: onnx.ModelProto) -> tuple[bytes, list[SeparateTensor]]:
    """Return a model as bytes, and its large constants; they are taken out of `model` itself."""
    from onnx import TensorProto

    from nnadapter.onnx.references import array_of, with_contents, without_contents

    separate_tensors: list[SeparateTensor] = []
    for tensor in model.graph.initializer:
        if not _is_separable(tensor):
            tensor.CopyFrom(with_contents(tensor))
            continue
        contents = np.ascontiguousarray(array_of(tensor)).reshape(-1).view(np.uint8)
        dtype = DTYPE_OF_ELEMENT_TYPE[tensor.data_type]
        separate_tensors.append(SeparateTensor(tensor.name, dtype, tuple(tensor.dims), contents))
        tensor.CopyFrom(without_contents(tensor))
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=LOCATION)
    return model.SerializeToString(), separate_tensors


def joined(contents: bytes, tensors: Sequence[SeparateTensor]) -> onnx.ModelProto:
    """Return the model that `separated` took apart."""
    import onnx

    model = onnx.ModelProto()
    model.ParseFromString(contents)
    by_name = {tensor.name: tensor for tensor in tensors}
    for tensor in model.graph.initializer:
        if tensor.name in by_name:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = by_name[tensor.name].contents.tobytes()
    return model


def joined_bytes(contents: bytes, tensors: Mapping[str, Array]) -> bytes:
    """Return the model that `separated` took apart as bytes, by the contents of its constants; it needs no onnx."""
    within = partial(rewritten, contents)
    initializer = partial(_filled, contents, tensors)
    model_bytes = within(0, len(contents), GRAPH, lambda start, end: within(start, end, INITIALIZER, initializer))
    return contents if model_bytes is None else model_bytes


def _filled(contents: bytes, tensors: Mapping[str, Array], start: int, end: int) -> bytes | None:
    """A constant with its contents; None where it has them."""
    rows = list(fields(contents, start, end))
    name = next((contents[begin:stop].decode(errors="replace") for tag, _, begin, stop in rows if tag == _NAME), "")
    if name not in tensors:
        return None
    preserved_fields = [contents[at:stop] for tag, at, _, stop in rows if tag not in _OF_PLACES]
    data = tensors[name].reshape(-1).view(np.uint8).data
    return b"".join([*preserved_fields, varint_bytes(RAW_DATA), varint_bytes(data.nbytes), data])


def _is_separable(tensor: onnx.TensorProto) -> bool:
    dtype = DTYPE_OF_ELEMENT_TYPE.get(tensor.data_type, "")
    return dtype in _BY_ADDRESS and prod(tensor.dims) * ITEMSIZE_OF_DTYPE[dtype] >= _LEAST_BYTES
