"""Table of the package's optional parts, which the core imports on request and only through this table."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

DRIVERS: Mapping[str, str] = MappingProxyType(
    {
        "faulty": "nnadapter.drivers.faulty.driver:FaultyDriver",
        "openvino": "nnadapter.drivers.openvino.driver:OpenvinoDriver",
        "ort": "nnadapter.drivers.execution_providers.driver:EpDriver",
        "qnn": "nnadapter.drivers.execution_providers.qnn:QnnDriver",
        "xla": "nnadapter.drivers.xla.driver:XlaDriver",
    }
)
"""Driver name -> `module:class` of a built-in driver that is optional."""

ENTRIES: Mapping[str, str] = MappingProxyType(
    {
        "installed_providers": "nnadapter.drivers.execution_providers.backing:installed_providers",
        "provider_tensor": "nnadapter.drivers.execution_providers.program:tensor_of",
        "why_provider_is_unusable": "nnadapter.drivers.execution_providers.driver:why_unusable",
        "openvino_divided_chains": "nnadapter.drivers.openvino.fusion_workarounds:DIVIDED_CHAINS",
        "openvino_baseline": "nnadapter.drivers.openvino.baseline:opened",
        "openvino_default_precision": "nnadapter.drivers.openvino.baseline:default_precision",
        "openvino_version": "nnadapter.drivers.openvino.baseline:version",
        "paddle_model_as_onnx": "nnadapter.paddle.conversion:as_onnx",
        "paddle_onnx_file": "nnadapter.paddle.conversion:onnx_of",
        "paddle_structures": "nnadapter.paddle.model_files:structures_in",
        "torch_model_as_onnx": "nnadapter.torch.modules:model_of",
        "torch_module_from_name": "nnadapter.torch.modules:load_named",
        "is_torch_module_name": "nnadapter.torch.modules:names_module",
    }
)
"""Entry name -> `module:name` of a function or value."""


def optional_part(name: str) -> Any:
    """Import and return a value of `ENTRIES` by name."""
    module, _, attribute = ENTRIES[name].partition(":")
    return getattr(import_module(module), attribute)
