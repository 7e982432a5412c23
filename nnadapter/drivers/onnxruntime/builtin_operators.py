"""Operators that ONNX Runtime adds to the ONNX domain, such as SimplifiedLayerNormalization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxruntime.capi import onnxruntime_pybind11_state as native

from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.process.resources import memoize

_PLAIN_PROVIDERS = frozenset((CPU_PROVIDER, "AzureExecutionProvider"))


def has_operator(op_type: str, opset: int) -> bool:
    """Return whether ONNX Runtime has a kernel for an op of ONNX's domain at this opset.

    If the build has other providers than the CPU, only the op's schema is checked: listing kernels crashes in
    onnxruntime-gpu 1.31.
    """
    if not hasattr(native, "get_all_opkernel_def"):
        return True
    schemas = [schema for schema in _schemas().get(op_type, ()) if schema.since_version <= opset]
    newest = max(schemas, key=lambda schema: int(schema.since_version), default=None)
    if newest is None or newest.deprecated:
        return False
    lists_kernels = _PLAIN_PROVIDERS.issuperset(onnxruntime.get_available_providers())
    return not lists_kernels or any(first <= opset <= last for first, last in _kernels().get(op_type, ()))


@memoize(1)
def _schemas() -> Mapping[str, Sequence[native.schemadef.OpSchema]]:
    schemas_by_type: dict[str, list[native.schemadef.OpSchema]] = {}
    for schema in native.get_all_operator_schema():
        if not schema.domain:
            schemas_by_type.setdefault(schema.name, []).append(schema)
    return schemas_by_type


@memoize(1)
def _kernels() -> Mapping[str, Sequence[tuple[int, int]]]:
    ranges_by_type: dict[str, list[tuple[int, int]]] = {}
    for kernel in native.get_all_opkernel_def():
        if not kernel.domain and kernel.provider == CPU_PROVIDER:
            ranges_by_type.setdefault(kernel.op_name, []).append(kernel.version_range)
    return ranges_by_type
