"""What README.md prints works, and README.zh.md is its twin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import nnadapter as nna

ROOT = Path(__file__).parent.parent
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(code):
    """Run a block as a person would, in a process of its own, with warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_first_example_runs_on_two_devices():
    printed = run(blocks(ENGLISH, "python")[0])
    assert "Erf x1  switched_off" in printed
    assert "segments   3 (2 off the CPU, the fewest possible)" in printed


def test_the_stand_in_takes_the_place_of_onnxruntime():
    assert run(blocks(ENGLISH, "python")[1]) == "True\n"


@pytest.mark.filterwarnings("default")  # as for a person
def test_the_example_of_pytorch_is_one_session(capsys):
    pytest.importorskip("onnxscript", reason="the exporter of PyTorch needs it")
    (_, _, example) = blocks(ENGLISH, "python")
    exec(example, {"__name__": "__main__"})
    assert "100.0% of operators in sessions" in capsys.readouterr().out


@pytest.mark.models
def test_the_report_is_a_real_one():
    import rapidocr

    model = Path(rapidocr.__file__).parent / "models" / "ch_ppocr_mobile_v2.0_cls_mobile.onnx"
    if not model.exists():
        pytest.skip("this rapidocr ships another direction classifier")
    device = ("fake_npu", {"switched_off": "HardSigmoid"})
    real = str(nna.partition_report(model, device, {"x": (1, 3, 48, 192)})).splitlines()
    shown = [line for line in blocks(ENGLISH, "text")[0].splitlines() if line != "..."]
    assert [line for line in shown if line not in real] == []


def test_the_two_commands_are_there_word_for_word():
    for text in (ENGLISH, CHINESE):
        assert "\n    pip install '.[demo]' && python examples/read_text.py\n" in text
        assert "\n    pip install -e '.[test]' && pytest\n" in text


def test_the_sub_commands_exist():
    from nnadapter.cli.entry import main

    named = re.findall(r"^    nnadapter ([\w-]+)", ENGLISH, re.MULTILINE)
    assert list(dict.fromkeys(named)) == main.list_commands(None)


@pytest.mark.parametrize("pattern", [r"^```.*?^```", r"^    \S.*$"], ids=["fenced", "indented"])
def test_both_languages_have_the_same_code(pattern):
    found = [re.findall(pattern, text, re.MULTILINE | re.DOTALL * ("`" in pattern)) for text in (ENGLISH, CHINESE)]
    assert found[0] == found[1]


@pytest.mark.parametrize("pattern", [r"^(#+) ", r"^(\|)", r"^(- )"], ids=["headings", "table rows", "list items"])
def test_both_languages_have_the_same_structure(pattern):
    assert re.findall(pattern, ENGLISH, re.MULTILINE) == re.findall(pattern, CHINESE, re.MULTILINE)


def test_both_languages_have_the_same_links():
    targets = [re.findall(r"\]\(([^)]+)\)", text) for text in (ENGLISH, CHINESE)]
    assert targets[0][0] == "README.zh.md" and targets[1][0] == "README.md"
    assert targets[0][1:] == targets[1][1:]
