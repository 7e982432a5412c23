from __future__ import annotations

import pytest

from nnadapter.drivers.providers import NEEDS
from nnadapter.drivers.registry import HardwareNeeds, Machine


@pytest.mark.parametrize(
    ("provider", "system", "files", "met"),
    [
        ("CUDA", "Linux", {}, False),
        ("CUDA", "Linux", {"dev/nvidia0": ""}, True),
        ("CUDA", "Linux", {"dev/nvidia-caps": ""}, False),
        ("CUDA", "Windows", {}, True),
        ("CUDA", "Darwin", {"dev/nvidia0": ""}, False),
        ("CoreML", "Linux", {}, False),
        ("CoreML", "Darwin", {}, True),
        ("Dml", "Windows", {}, True),
        ("MIGraphX", "Linux", {"dev/kfd": ""}, True),
        ("VitisAI", "Linux", {"sys/class/accel/accel0/device/vendor": "0x1022\n"}, True),
        ("VitisAI", "Linux", {"sys/class/accel/accel0/device/vendor": "0x8086\n"}, False),
        ("WebGpu", "Linux", {"dev/dri/renderD128": ""}, True),
        ("OpenVINO", "Linux", {}, True),
    ],
)
def test_availability_depends_on_hardware_and_system(provider, system, files, met, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert NEEDS[f"{provider}ExecutionProvider"].met_by(Machine(system, tmp_path)) == met


def test_unreadable_file_is_ignored(tmp_path):
    (tmp_path / "vendor").mkdir()
    assert not HardwareNeeds(("Linux",), ("vendor",), "0x8086").met_by(Machine("Linux", tmp_path))
