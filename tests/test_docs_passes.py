"""The page on passes: agreement with the kit, and examples that run unchanged."""

from __future__ import annotations

import difflib
import re

import numpy as np
import pytest

from nnadapter.drivers.fake_npu import OPTIONS
from nnadapter.errors import PassError
from nnadapter.ir.definition import by_definition
from nnadapter.ir.passes import PASSES, check_numbers, run_passes
from tests.ir.passes.program import Program, check, random, types
from tests.test_docs import blocks, page

PAGE = "passes.md"


@pytest.fixture
def names():
    """Return the names that the page's Python code defines, run in order."""
    found = {}
    for code in blocks(page(PAGE), "python"):
        exec(code, found)
    return found


def model():
    """Return a model with a copy and a PRELU of each kind."""
    program = Program(x=(2, 3))
    one = program("PRELU", program("ASSIGN", program.x), np.full((3,), 0.25, np.float32))
    return program.finish(program("PRELU", one, random(1, 3)))


def test_table_equals_the_passes_in_code():
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \|$", page(PAGE).split("## The passes")[1].split("\nWhat vendors")[0], re.MULTILINE
    )
    assert rows == [(name, each.__doc__.splitlines()[0]) for name, each in PASSES.items()]


def test_named_passes_exist():
    wanted = page(PAGE).split("What vendors")[1].split("Two passes")[0]
    assert set(re.findall(r"`(\w+)`", wanted)) <= PASSES.keys()


def test_documented_list_of_passes_runs(names):
    program = Program(x=(2, 2, 2, 2, 2, 2))
    after = names["prepare"](program.finish(program("RELU", program("NEG", program.x))))
    assert [each for each in types(after) if each != "RESHAPE"] == ["NEG", "RELU"]


def test_documented_pass_works(names):
    function = names["prelu_to_leaky_relu"]
    after = check(function, model())
    assert types(after) == ["ASSIGN", "LEAKY_RELU", "PRELU"]
    assert function(after) is after
    source = next(code for code in blocks(page(PAGE), "python") if "def prelu_to" in code)
    assert len([line for line in source.splitlines() if line.strip()]) <= 25


def test_documented_dump_equals_the_real_one(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names["watched"](model())
    files = sorted((tmp_path / "steps").iterdir())
    assert [file.name for file in files] == ["00-given.txt", "01-simplify.txt", "02-prelu_to_leaky_relu.txt"]
    before, after = (file.read_text().splitlines() for file in files[1:])
    shown = [line for line in difflib.unified_diff(before, after, lineterm="", n=0) if re.match(r"[+-][^+-]", line)]
    (text,) = (block for block in blocks(page(PAGE), "text") if block.startswith("$ diff"))
    assert text.splitlines()[1:] == shown


def test_documented_error_equals_the_real_one(names):
    def prelu_to_leaky_relu(given):
        after = names["prelu_to_leaky_relu"](given)
        for operation in after.operations:
            if operation.type == "LEAKY_RELU":
                operation.attributes["alpha"] = 0.5
        return after

    program = Program(x=(1, 3))
    wanted = program.finish(program("PRELU", program.x, np.full((3,), 0.25, np.float32)))
    given = np.array([[1, 2, -4]], np.float32)
    with pytest.raises(PassError) as caught:
        run_passes(wanted, [prelu_to_leaky_relu], check_numbers(by_definition, feeds=lambda _: [given]))
    assert f"{caught.value}\n" in blocks(page(PAGE), "text")


def test_documented_options_exist():
    assert set(re.findall(r"fake_npu\.(\w+)=", page(PAGE))) <= {option.name for option in OPTIONS}
