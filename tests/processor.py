"""Instructions of this machine's processor that tests depend on."""

from __future__ import annotations

from pathlib import Path

import pytest


def _has_vnni() -> bool:
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.exists() else set()
    return bool(words & {"avx512_vnni", "avx_vnni", "avx10", "asimddp"}) or not words & {"avx2"}


needs_vnni = pytest.mark.skipif(
    not _has_vnni(), reason="without VNNI, ONNX Runtime and OpenVINO saturate sums of uint8 times int8 in 16 bits"
)
