"""Agreement of the pages in docs/ with the code."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from onnx import parser

import nnadapter as nna
from nnadapter.cli import main
from nnadapter.drivers import registry
from nnadapter.ir.passes import PASSES
from nnadapter.planning import read_plan
from nnadapter.rules import read_rules
from tests import test_layers
from tests.every import for_every

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "notes").glob("*.md")])
OPERATIONS = sorted((ROOT / "docs" / "operations").glob("*.md"))
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@for_every(path=[*PAGES, *OPERATIONS, *REFERENCE])
def test_link_targets_exist(path):
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        file, _, anchor = target.partition("#")
        found = path.parent / file if file else path
        assert found.exists(), target
        headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [heading.lower().replace(" ", "-") for heading in headings], target


@for_every(path=PAGES)
def test_named_files_exist(path):
    named = re.findall(
        r"`((?:nnadapter|partition|tests|docs|examples|benchmarks)/[\w./]*)`", path.read_text(encoding="utf-8")
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_page_is_linked():
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    linked = re.findall(r"\]\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert pages == set(linked)
    entries = "".join(blocks(page("index.md"), r"\{toctree\}")).splitlines()
    listed = {entry for entry in entries if entry and not entry.startswith(":")}
    folder = ROOT / "docs"
    assert listed == {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md")} - {"index"}


def commands(path):
    """Return the command lines of a page, without their trailing explanations."""
    text = path.read_text(encoding="utf-8")
    return [
        shlex.split(line, comments=True) for line in re.findall(r"^ {4}nnadapter ([a-z].*?)(?: {3,}.*)?$", text, re.M)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_documented_commands_parse(path):
    for name, *arguments in commands(path):
        command = main.get_command(None, name)
        while isinstance(command, click.Group):
            command, *arguments = command.get_command(None, arguments[0]), *arguments[1:]
        command.make_parser(click.Context(command, **main.context_settings)).parse_args(arguments)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_imports_of_examples_exist(path):
    for block in blocks(path.read_text(encoding="utf-8"), "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("nnadapter", "partition"):
                module = importlib.import_module(node.module)
                assert [each.name for each in node.names if not hasattr(module, each.name)] == [], node.module


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_named_options_exist(path):
    named = re.findall(r"\bOptions\((\w+)=", path.read_text(encoding="utf-8"))
    assert set(named) <= {field.name for field in dataclasses.fields(nna.Options)}


def test_glossary_has_each_term_once_and_is_linked():
    rows = re.findall(r"^\| ([\w, -]+) \| .+ \|$", page("glossary.md"), re.MULTILINE)
    words = [word for row in rows for word in row.split(", ") if row != "term"]
    assert len(words) == len(set(words))
    assert {"segment", "plan", "folded", "arena", "policy", "adapter IR", "atom", "verdict", "boundary"} <= set(words)
    assert "](docs/glossary.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](glossary.md)" in page("architecture.md")


def test_every_package_is_in_the_table():
    rooms = {file.parent.name for file in (ROOT / "nnadapter").glob("*/*.py")}
    text = page("architecture.md")
    assert [
        room for room in rooms if f"`nnadapter/{room}/` |" not in text and f"`nnadapter/{room}/`, `" not in text
    ] == []
    assert "| `partition/` |" in text


def test_files_to_start_with_are_in_their_packages():
    rows = re.findall(r"^\| (`(?:nnadapter|partition).+?) \| .+ \| (`.+`) \|$", page("architecture.md"), re.MULTILINE)
    assert len(rows) > 30
    for rooms, files in rows:
        folders = [ROOT / room for room in re.findall(r"`([^`]+)`", rooms)]
        for file in re.findall(r"`([^`]+)`", files):
            assert any((folder / file).exists() for folder in folders), (rooms, file)


@pytest.mark.slow
def test_reference_is_up_to_date():
    for name in ("openvino", "jax", "onnxruntime_qnn"):
        pytest.importorskip(name, reason="the reference describes its options")
    generated = program("make_reference").pages()
    kept = {path.name: path.read_text(encoding="utf-8") for path in REFERENCE if path.name != "operators.md"}
    assert kept == generated, "run: python docs/make_reference.py"


def test_documented_layers_equal_the_tested_ones():
    rows = re.findall(r"^\| \d+ \| (.+) \|$", page("architecture.md"), re.MULTILINE)
    assert [tuple(re.findall(r"`([\w.]+)`", row)) for row in rows] == test_layers.RANKS


@pytest.mark.parametrize(("package", "rooms"), [("onnx", test_layers.ONNX), ("onnxruntime", test_layers.ONNXRUNTIME)])
def test_documented_importers_equal_the_tested_ones(package, rooms):
    (line,) = re.findall(rf"^`{package}` may be imported by: (.+)$", page("architecture.md"), re.MULTILINE)
    assert tuple(re.findall(r"`([\w.]+)`", line)) == rooms


def program(name):
    """Import a program that writes pages."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_operator_tables_are_up_to_date():
    operators = program("make_operators")
    kept, made = page("reference/operators.md"), operators.page()
    if f"Made with onnx {onnx.__version__}," in kept:
        assert kept == made, "run: python docs/make_operators.py"
        assert operators.TABLE.read_text(encoding="utf-8") == operators.table(), "run: python docs/make_operators.py"
    else:  # another onnx version has other ops and tests, but conversion is the same
        assert converted_versions(kept) == converted_versions(made)


def test_operation_reference_is_up_to_date():
    made = program("make_operations").pages()
    assert {path.name: path.read_text(encoding="utf-8") for path in OPERATIONS} == made, (
        "run: python docs/make_operations.py"
    )


def converted_versions(text):
    return re.findall(r"^\| ([\w.:]+) \| ([\d, ]+) \| .*\|.*\|$", text.split("## Not converted")[0], re.MULTILINE)


@pytest.mark.slow
def test_memory_figures_equal_the_real_report():
    import rapidocr

    model = Path(rapidocr.__file__).parent / "models" / "PP-OCRv6_det_small.onnx"
    if not model.exists():
        pytest.skip("this rapidocr ships another detection model")
    real = str(nna.partition_report(model, "fake_npu", {"x": (1, 3, 224, 224)}))
    assert blocks(page("performance.md"), "text")[0] in f"{real}\n"


def test_documented_packages_are_in_pyproject():
    known = re.findall(
        r'^ {4}"([a-z-]+)>=|"([a-z-]+)(?:\[[a-z,]+\])?>=', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    named = re.findall(r"^\| ([a-z, ]+) \|", page("dependencies.md"), re.MULTILINE)
    packages = {name for row in named for name in row.split(", ")} - {"package"}
    assert packages <= {first or second for first, second in known}


@for_every(path=PAGES)
def test_install_commands_are_for_a_clone_and_name_extras(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"pip install '?nnadapter\b", text) == []
    named = {name for names in re.findall(r"pip install (?:-e )?'\.\[([\w,-]+)\]'", text) for name in names.split(",")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert named <= project["optional-dependencies"].keys()


def test_oldest_tested_versions_equal_pyproject():
    allowed = dict(re.findall(r'^ {4}"([a-z-]+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    pinned = dict(re.findall(r"^([a-z-]+)==([\d.]+)$", (ROOT / "tests" / "oldest.txt").read_text(), re.MULTILINE))
    core = ("numpy", "onnx", "onnxruntime", "ml-dtypes", "protobuf", "click", "rich", "msgspec", "platformdirs")
    assert {name for name in core if not pinned[name].startswith(allowed[name])} == set()


def test_passes_of_the_driver_page_exist():
    text = page("write-a-driver.md").split("## Passes")[1]
    (listed,) = re.findall(r"run_passes\(model, \[(.+)\]\)", text)
    assert set(re.findall(r'"(\w+)"', listed)) <= PASSES.keys()
    assert re.findall(r"^\| `(\w+)`", text, re.MULTILINE) == [] and "](passes.md)" in text


@pytest.mark.parametrize(("package", "rooms"), [("onnx", test_layers.ONNX), ("onnxruntime", test_layers.ONNXRUNTIME)])
def test_dependency_page_names_the_importers(package, rooms):
    (row,) = re.findall(rf"^\| {package} \| .+ \| (.+) \|$", page("dependencies.md"), re.MULTILINE)
    files = re.findall(r"`([\w./]+)`", row)
    assert tuple(file.removesuffix(".py").strip("/").replace("/", ".") for file in files) == rooms


@pytest.fixture(scope="module")
def tiny_npu(tmp_path_factory):
    """Install the page's driver through the page's entry point."""
    site = tmp_path_factory.mktemp("tiny")
    name, target = re.search(r'^(\w+) = "(.+)"$', blocks(page("write-a-driver.md"), "toml")[0], re.MULTILINE).groups()
    folder = site / "tiny_npu-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny_npu\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{name} = {target}\n")
    (site / "tiny_npu.py").write_text(blocks(page("write-a-driver.md"), "python")[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        registry.refresh()
        yield name
    registry.refresh()


def test_documented_driver_works(tiny_npu, capsys):
    names = {}
    exec(blocks(page("write-a-driver.md"), "python")[1], names)
    expected = -np.sin(1.0) + 1.0
    np.testing.assert_allclose(names["y"], np.full((2, 3), expected, np.float32), rtol=1e-6)
    printed = capsys.readouterr().out
    assert "tiny_npu: Sin x1  unsupported_operation" in printed
    assert "segments   3 (2 off the CPU" in printed


def test_segment_too_large_for_documented_driver_is_split(tiny_npu):
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { a = Neg(x)  y = Add(a, a) }'
    )
    with nna.InferenceSession(model, devices=(tiny_npu, {"max_operations": 1})) as session:
        (y,) = session.run(None, {"x": np.array([1, -2], np.float32)})
        assert y.tolist() == [-2, 4]
        assert [segment.device for segment in session.report().segments] == [tiny_npu] * 2


def test_documented_profile_is_valid():
    from nnadapter.drivers.capability import flaw

    (block,) = blocks(page("write-a-driver.md").split("## How fast it is")[1].split("\n## ")[0], "python")
    made = {}
    exec(block, made)
    assert flaw(made["PROFILE"]) == ""


def test_documented_passes_work():
    from nnadapter.ir import DataType, ModelBuilder, OperandType

    passes = blocks(page("write-a-driver.md").split("## Passes")[1], "python")
    prepare, rewrite = (types.SimpleNamespace() for _ in range(2))
    for names, code in zip((prepare, rewrite), passes, strict=True):
        exec(code, vars(names))
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (2, 3)))
    (a,) = builder.add_operation("NEG", (x,))
    (b,) = builder.add_operation("NEG", (a,))
    (c,) = builder.add_operation("RELU", (b,))
    model = builder.finish([c])
    assert [operation.type for operation in prepare.prepare(model).operations] == ["NEG", "NEG", "RELU"]
    assert [operation.type for operation in rewrite.remove_double_negation(model).operations] == ["ASSIGN", "RELU"]


def test_documented_replacement_replaces_onnxruntime():
    command = [sys.executable, "-W", "error", "-c", blocks(page("onnxruntime.md"), "python")[0]]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "True\n"


def test_documented_hand_built_model_runs():
    code = blocks(page("notes/comparison.md"), "python")[0]
    names = {}
    exec(code, names)
    assert names["result"].tolist() == [[0, 0, 2, 4]]


def test_documented_model_is_saved_and_loaded(capsys):
    exec(blocks(page("reference/formats.md"), "python")[0], {})
    assert capsys.readouterr().out == "['.model', '.weights']\n"


def test_documented_rules_are_equal_in_both_forms():
    names = {}
    exec(blocks(page("rules.md"), "python")[0], names)
    assert read_rules(blocks(page("rules.md"), "toml")[0]) == names["rules"]


def test_documented_plan_is_valid(tmp_path):
    (tmp_path / "plan.json").write_text(blocks(page("rules.md"), "json")[0])
    assert [entry.device for entry in read_plan(tmp_path / "plan.json").entries] == ["fake_npu", "cpu"]
