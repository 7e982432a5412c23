"""The programs in benchmarks/ still fit the package, and what the pages and their own first lines say of them."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import rapidocr

import nnadapter as nna
from tests.every import for_every

ROOT = Path(__file__).parent.parent
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
PROGRAMS = [path for path in BENCHMARKS if "ArgumentParser(" in path.read_text(encoding="utf-8")]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NEEDS = {
    "paddle_models": "paddle",
    "paddle_networks": "paddle",
    "plan_memory": "openvino",
    "ray_batch": "ray",
    "ray_serve": "ray",
    "xla": "jax",
}
"""What a program imports that may not be there."""

CLASSIFIER = str(next((Path(rapidocr.__file__).parent / "models").glob("*cls*.onnx")))

QUICK = {
    "fake_npu": ["--profile", "cls", "--rounds", "1"],
    "overhead": ["--rounds", "5"],
    "shapes": ["--layers", "1", "--device", "null"],
}
"""The least that shows that a program works, of those that lean on what the package does not promise."""
SLOWER = {
    "accuracy": ["--device", "fake_npu", "--only", "cls"],
    "borders": ["--pairs", "cpu,fake_npu", "--segments", "3", "--rounds", "1"],
    "bounds": ["--ways", "report", "--only", "a cycle"],
    "branches": ["--rounds", "1"],
    "chaos": ["runs", "--count", "50"],
    "decode_memory": ["--layers", "1", "--width", "64", "--steps", "2", "-d", "cpu", "null"],
    "decode": ["--layers", "1", "--width", "64", "--steps", "2", "--rounds", "1", "-d", "null"],
    "devices": [CLASSIFIER, "--rounds", "2"],
    "fake_npu": ["--callers", "2", "--only", "cls", "--rounds", "1"],
    "faults": ["--form", "in process", "--device", "fake_npu", "--kind", "fail", "--phase", "run"],
    "fixed_sizes": ["--lengths", "6", "--rounds", "1"],
    "isolated": ["sessions", "--count", "5"],
    "measured": [CLASSIFIER, "--sets", "1", "--rounds", "1"],
    "merged_decoder": ["--layers", "1", "--width", "64", "--steps", "2", "--rounds", "1", "-d", "cpu", "null"],
    "ocr": ["--pictures", "1", "--passes", "1"],
    "optimized_models": ["digits"],
    "paddle_models": ["half"],
    "partitioning": ["segments"],
    "plan_memory": ["--cases", "fake_npu", "--networks", "residual", "--plans", "1"],
    "policies": ["--only", "digits", "--repetitions", "1", "--turns", "1", "--policies", "measured"],
    "pytorch": ["perceptron"],
    "pytorch_sizes": ["MLP mixer"],
    "pytorch_speed": ["calls", "--rounds", "1"],
    "quantized": ["mobilenet", "--rounds", "1"],
    "ray_batch": ["--parts", "overhead", "--rounds", "1", "--seconds", "1"],
    "ray_serve": ["--requests", "50", "--callers", "2"],
    "report": ["--rounds", "1", "--most", "100"],
    "shapes": ["--count", "4", "--runs", "10", "--shapes", "2"],
    "startup": ["--models", "cls", "--ways", "fake_npu", "--rounds", "1"],
    "stream": ["--items", "2", "--rounds", "1"],
    "training": ["graph net", "--steps", "1"],
    "what_if": [CLASSIFIER],
    "written_models": ["LSTM, dynamic"],
    "xla": ["--length", "8", "--rounds", "1"],
}


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def defined(module):
    """Names at the top of one of these programs, which may import what is not installed."""
    names = set()
    for node in parsed(ROOT / f"{module.replace('.', '/')}.py").body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            names |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
    return names


def missing(module, names):
    if module.startswith("benchmarks."):
        return set(names) - defined(module)
    found = importlib.import_module(module)
    absent = {name for name in names if not hasattr(found, name)}
    return {name for name in absent if not hasattr(found, "__path__") or find_spec(f"{module}.{name}") is None}


@for_every(path=[*BENCHMARKS, *EXAMPLES])
def test_what_is_imported_is_there(path):
    needed = NEEDS.get(path.stem)
    if needed and find_spec(needed) is None:
        pytest.skip(f"the package {needed} is not installed")
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("nnadapter", "partition", "benchmarks"):
            assert missing(node.module, [each.name for each in node.names]) == set(), node.module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nna":
            assert hasattr(nna, node.attr), node.attr


def options_of(path):
    """The options that a program has."""
    return {"--help"} | {
        each.value
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
        for each in node.args
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith("-")
    }


def options_named(text, name):
    """The options that a text names where it says how a program is called, in the lines behind as well."""
    calls = re.findall(rf"\b{name}\.py([^`#\]]*?)(?=`|#|\n\n|python |\Z)", text)
    return {option for call in calls for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?![\w-])", call)}


@for_every(path=[*PROGRAMS, *(path for path in EXAMPLES if "ArgumentParser(" in path.read_text(encoding="utf-8"))])
def test_options_that_are_named_are_those_that_there_are(path):
    texts = [ast.get_docstring(parsed(path)), *(page.read_text(encoding="utf-8") for page in PAGES)]
    named = set().union(*(options_named(text, path.stem) for text in texts))
    assert named <= options_of(path)


def run(name, arguments, folder):
    """Start a program as a person would; what it prints."""
    needed = NEEDS.get(name)
    if needed and find_spec(needed) is None:
        pytest.skip(f"the package {needed} is not installed")
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / f"{name}.py", *arguments],
        cwd=folder,
        env={**os.environ, "NNADAPTER_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(printed):
    """Rows of tables behind their heads."""
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    return len(lines) - 2 * sum(line.startswith("| --- ") for line in lines)


def test_every_program_is_tried():
    assert {path.stem for path in PROGRAMS} == QUICK.keys() | SLOWER.keys() | {"tutorial_models"}


@pytest.mark.models
@pytest.mark.parametrize("name", QUICK)
def test_a_program_prints_a_table(name, tmp_path):
    assert figures(run(name, QUICK[name], tmp_path)) > 0


@pytest.mark.sweep
@pytest.mark.parametrize("name", SLOWER)
def test_each_program_works(name, tmp_path):
    printed = run(name, SLOWER[name], tmp_path)
    assert figures(printed) > 0 or re.search(r"^\d+ (rows|sessions) ", printed, re.MULTILINE), printed
