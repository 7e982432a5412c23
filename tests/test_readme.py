"""README.md has code that works, and README.zh.md has the same code."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import nnadapter as nna
from nnadapter.cli import main

ROOT = Path(__file__).parent.parent
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh.md").read_text(encoding="utf-8")
BOTH = pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["English", "Chinese"])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_python_example_runs_on_two_devices():
    (example,) = re.findall(r"^```python\n(.*?)^```", ENGLISH, re.MULTILINE | re.DOTALL)
    command = [sys.executable, "-W", "error", "-c", example]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "Erf x1  switched_off" in printed
    assert "segments   3 (2 off the CPU, the fewest possible)" in printed


@pytest.mark.filterwarnings("default")  # as for users
@BOTH
def test_pytorch_example_runs_in_sessions(text):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript", reason="PyTorch's exporter needs it")
    (call,) = re.findall(r"`(torch\.compile\(.+?\))`", text)
    compiled = eval(call, {"torch": torch, "model": torch.nn.Linear(4, 8).eval()})
    with torch.no_grad():
        compiled(torch.ones(3, 4))
    assert "100.0% of operators in sessions" in str(nna.torch.report(compiled))


@BOTH
def test_paddle_import_works(text):
    (statement,) = re.findall(r"import nnadapter\.paddle as paddle_infer", text)
    names = {}
    exec(statement, names)
    assert all(hasattr(names["paddle_infer"], name) for name in ("Config", "create_predictor"))


@BOTH
def test_both_install_commands_are_present(text):
    assert "\n    pip install '.[demo]' && python examples/read_text.py\n" in text
    assert "\n    pip install -e '.[test]' && pytest\n" in text


@BOTH
def test_the_extras_exist(text):
    assert set(re.findall(r"pip install (?:-e )?'\.\[(\w+)\]'", text)) <= PROJECT["optional-dependencies"].keys()


@BOTH
def test_the_examples_exist(text):
    assert [name for name in re.findall(r"python (examples/\S+)", text) if not (ROOT / name).is_file()] == []


@BOTH
def test_the_commands_exist(text):
    named = set(re.findall(r"(?:^    |`)nnadapter ([\w-]+)", text, re.MULTILINE))
    assert named and named <= set(main.list_commands(None))


@pytest.mark.parametrize("pattern", [
    r"^    (nnadapter .+?) +#", r"!\[.*\]\((.+)\)", r"`(torch\.compile.+?)`", r"`(nnadapter .+?)`",
], ids=["command lines", "pictures", "PyTorch", "inline commands"])  # fmt: skip
def test_chinese_page_has_only_code_of_english_page(pattern):
    english, chinese = (re.findall(pattern, text, re.MULTILINE) for text in (ENGLISH, CHINESE))
    assert chinese and set(chinese) <= set(english)


def test_chinese_page_has_only_links_of_english_page():
    english, chinese = (
        {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text)} for text in (ENGLISH, CHINESE)
    )
    assert chinese - {"README.md"} <= english


def test_the_pages_are_short():
    assert len(ENGLISH.splitlines()) <= 90 and len(CHINESE.splitlines()) <= 60
