"""Agreement of the benchmarks with the package, their index, and the pages that name them."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import nnadapter as nna
from benchmarks.__main__ import main
from benchmarks.index import BENCHMARKS
from tests.every import for_every

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CALLS = {
    **{ROOT / "benchmarks" / f"{name}.py": rf"-m benchmarks {name}" for name in BENCHMARKS},
    **{path: rf"{path.stem}\.py" for path in EXAMPLES if "ArgumentParser(" in path.read_text(encoding="utf-8")},
}
"""Program -> a pattern of its command line."""
COMMON_OPTIONS = {"--help", "--json", "--quick"}
PLAIN = ("fake_npu", "overhead", "shapes")
"""Benchmarks that depend on internals, so their smallest form always runs."""


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def defined(module):
    """Return the names that a benchmark module defines, without importing it: its packages may be missing."""
    path = ROOT / module.replace(".", "/")
    names = {each.stem for each in path.glob("*.py")}
    for node in parsed(path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            names |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
    return names


def missing(module, names):
    if module.split(".")[0] == "benchmarks":
        return set(names) - defined(module)
    found = importlib.import_module(module)
    absent = {name for name in names if not hasattr(found, name)}
    return {name for name in absent if not hasattr(found, "__path__") or find_spec(f"{module}.{name}") is None}


@for_every(path=[*FILES, *EXAMPLES])
def test_imported_names_exist(path):
    needed = BENCHMARKS[path.stem].needs if path.stem in BENCHMARKS else ""
    if needed and find_spec(needed) is None:
        pytest.skip(f"the package {needed} is not installed")
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("nnadapter", "partition", "benchmarks"):
            assert missing(node.module, [each.name for each in node.names]) == set(), node.module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nna":
            assert hasattr(nna, node.attr), node.attr


def options_of(path):
    return COMMON_OPTIONS | {
        each.value
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
        for each in node.args
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.startswith("-")
    }


def options_named(text, call):
    """Return the options on all command lines of a program in a text."""
    calls = re.findall(rf"{call}\b([^`#\]]*?)(?=`|#|\n\n|python |\Z)", text)
    return {option for call in calls for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?![\w-])", call)}


@for_every(path=CALLS)
def test_named_options_exist(path):
    texts = [ast.get_docstring(parsed(path)), *(page.read_text(encoding="utf-8") for page in PAGES)]
    named = set().union(*(options_named(text, CALLS[path]) for text in texts))
    assert named <= options_of(path)


def test_pages_name_benchmarks_that_exist():
    for page in PAGES:
        named = re.findall(r"python -m benchmarks (\w+)", page.read_text(encoding="utf-8"))
        assert set(named) <= BENCHMARKS.keys() | {"NAME"}, page.name


def test_the_index_is_complete(capsys):
    programs = {path.stem for path in FILES if "def add_options(" in path.read_text(encoding="utf-8")}
    assert programs == BENCHMARKS.keys()
    assert main([]) == 0
    listed = capsys.readouterr().out
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, benchmark in BENCHMARKS.items():
        assert f"{name} " in listed and benchmark.question in listed, name
        assert f"| `{name}` | {benchmark.question} | {benchmark.duration} |" in page, name


def test_unknown_benchmark_is_an_error(capsys):
    assert main(["nothing"]) == 2
    assert "there is no benchmark 'nothing'" in capsys.readouterr().err


def check(printed, file):
    """Check that a benchmark prints a table and writes the same rows as JSON."""
    written = json.loads(file.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    rows = [row for table in written["tables"] for row in table["rows"]]
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    assert rows and len(rows) == len(lines) - 2 * sum(line.startswith("| --- ") for line in lines)
    assert written["versions"]["onnxruntime"] and written["failures"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_benchmark_prints_a_table_and_writes_json(name, tmp_path, capsys):
    assert main([name, "--quick", "--json", str(tmp_path / "results.json")]) == 0
    check(capsys.readouterr().out, tmp_path / "results.json")


def test_json_goes_to_standard_output(capsys):
    assert main(["partitioning", "growth", "--most", "100", "--json"]) == 0
    written = capsys.readouterr()
    assert json.loads(written.out)["benchmark"] == "partitioning" and "| --- |" in written.err


@pytest.mark.sweep
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_starts(name, tmp_path):
    needed = BENCHMARKS[name].needs
    if needed and find_spec(needed) is None:
        pytest.skip(f"the package {needed} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--quick", "--json", tmp_path / "results.json"],
        cwd=ROOT,
        env={**os.environ, "NNADAPTER_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout, tmp_path / "results.json")
