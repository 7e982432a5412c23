from __future__ import annotations

import sys

import pytest

from nnadapter.drivers.execution_providers import EMULATED_SOC, QnnDriver, own_options
from nnadapter.drivers.execution_providers.qnn import OPTIONS
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError

DEFAULTS = {option.name: option.default for option in OPTIONS}


def provider_options(*, emulated=True, **options):
    return own_options({**DEFAULTS, **options}, "lib.so", emulated=emulated)


@pytest.mark.parametrize(
    ("options", "emulated", "expected"),
    [
        ({}, True, {"soc_model": str(EMULATED_SOC), "enable_htp_fp16_precision": "1"}),
        ({}, False, {}),
        ({"float16": False}, False, {"enable_htp_fp16_precision": "0"}),
        ({"soc_model": 60}, False, {"soc_model": "60", "enable_htp_fp16_precision": "1"}),
        ({"backend": "gpu", "soc_model": 60}, True, {}),
        ({"htp_arch": "75"}, False, {"htp_arch": "75"}),
        (
            {"performance_mode": "burst", "finalization": "3", "vtcm_mb": 4},
            False,
            {"htp_performance_mode": "burst", "htp_graph_finalization_optimization_mode": "3", "vtcm_mb": "4"},
        ),
    ],
)
def test_options_map_to_provider_options(options, emulated, expected):
    assert provider_options(emulated=emulated, **options) == {
        "backend_path": "lib.so",
        "offload_graph_io_quantization": "0",
        **expected,
    }


def test_architecture_of_another_chip_is_refused():
    assert provider_options(soc_model=43, htp_arch="73")["htp_arch"] == "73"
    with pytest.raises(InvalidOptionError, match="htp_arch 68 contradicts soc_model 43, which has 73"):
        provider_options(soc_model=43, htp_arch="68")


def test_row_without_the_package_names_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    (row,) = QnnDriver().devices()
    assert not row.available and "pip install 'nnadapter[qnn]'" in row.reason
    with pytest.raises(DeviceUnavailableError, match=r"pip install 'nnadapter\[qnn\]'") as raised:
        QnnDriver().open("")
    assert (raised.value.extra, raised.value.package) == ("qnn", "onnxruntime-qnn")


def test_there_is_one_device():
    with pytest.raises(DeviceNotFoundError, match="write qnn or qnn:0"):
        QnnDriver().open("1")
