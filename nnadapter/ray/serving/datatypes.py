"""Data types as the Open Inference Protocol names them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
"""Ours -> the protocol's. Others (texts, sequences) are not served."""
DTYPES: Mapping[str, str] = MappingProxyType({name: dtype for dtype, name in NAMES.items()})
