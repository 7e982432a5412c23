"""Agreement of docs/reports.md with what-if."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nnadapter as nna

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")


@pytest.mark.sweep
def test_documented_example_equals_the_real_output():
    import rapidocr

    models = Path(rapidocr.__file__).parent / "models"
    if not list(models.glob("PP-OCRv6_det_small.onnx")):
        pytest.skip("this rapidocr ships other models")
    device = ("fake_npu", {"switched_off": "Erf,Resize,HardSigmoid", "clock": "simulated"})
    real = str(nna.what_if(models, device)).splitlines()
    (shown,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert [line for line in shown.splitlines() if line not in real] == []
