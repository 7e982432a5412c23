"""ONNX Runtime's execution providers as devices `ort:NAME`."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".backing": (
            "Backing computes_half find_backing installed marked missing_library read_assignment "
            "read_provider_options takes_addition"
        ),
        ".compiler": "float16_nodes miscomputed_nodes without",
        ".driver": "EpContext EpDriver",
        ".program": "EpMemory external_data_text import_dlpack is_plain",
        ".qnn": "EMULATED_SOC PROVIDER QnnDevice QnnDriver own_options",
    },
)
