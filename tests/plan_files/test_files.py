"""Plan files: written and read again, and what is said of those that are wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.errors import InvalidOptionError, PlanFileError
from nnadapter.plan_files.reading import read_plan
from nnadapter.plan_files.values import PlanEntry, PlanFile
from nnadapter.plan_files.writing import plan_text, write_plan

ENTRY = PlanEntry(name="/a", op_type="Relu", output="v", alone="01", wired="02", device="fake_npu")
PLAN = PlanFile(
    model="m",
    devices={"fake_npu": "1.0", "cpu": "1.31"},
    policy="priority",
    input_shapes={"x": (1, 3), "scalar": ()},
    entries=(ENTRY, replace(ENTRY, name='/"ü\n\ud800', device="cpu"), replace(ENTRY, name="/c", output="")),
)


def written(tmp_path, contents):
    path = tmp_path / "plan.json"
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return path


def test_written_and_read(tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, PLAN)
    found = read_plan(path)
    assert found == PLAN and found.source == str(path) and read_plan(str(path)) == PLAN
    lines = path.read_text().split("\n")
    assert len([line for line in lines if '"wired"' in line]) == len(PLAN.entries)
    assert list(tmp_path.iterdir()) == [path]


texts = st.text(min_size=1, max_size=5)
entries = st.builds(
    PlanEntry,
    name=texts,
    op_type=texts,
    output=st.text(max_size=5),
    alone=texts,
    wired=texts,
    device=st.sampled_from(["a", "b"]),
)
plans = st.builds(
    PlanFile,
    model=st.text(max_size=5),
    devices=st.just({"a": "", "b": "2"}),
    policy=texts,
    input_shapes=st.dictionaries(texts, st.lists(st.integers(0, 9)).map(tuple), max_size=2),
    entries=st.lists(entries, max_size=3, unique_by=lambda entry: entry.name).map(tuple),
)


@given(plans, st.sampled_from([None, 3]))
def test_every_plan_comes_back_whatever_its_layout(tmp_path_factory, plan, indent):
    folder = tmp_path_factory.mktemp("plan")
    text = json.dumps(json.loads(plan_text(plan)), indent=indent, ensure_ascii=indent is None)
    assert read_plan(written(folder, text)) == plan
    assert read_plan(written(folder, "\ufeff" + plan_text(plan).replace("\n", "\r\n"))) == plan


def test_files_that_are_cut_off_anywhere_are_said(tmp_path):
    contents = plan_text(PLAN).encode()
    for length in range(len(contents) - 1):
        path = written(tmp_path, contents[:length])
        with pytest.raises(PlanFileError, match="cut off") as caught:
            read_plan(path)
        assert caught.value.path == str(path) and caught.value.line is not None and "\n" not in str(caught.value)


GOOD = plan_text(PLAN)


@pytest.mark.parametrize(
    ("old", "new", "line", "entry", "said"),
    [
        ('"nnadapter plan"', '"something"', 1, None, "this is no plan: its \"format\" is not 'nnadapter plan'"),
        ('"format_version": 1', '"format_version": 2', 3, None, "of format version 2, and this .* reads version 1"),
        ('"format_version": 1', '"format_version": true', 3, None, "version True"),
        ('  "format_version": 1,\n', "", 1, None, "version None"),
        ('  "policy": "priority",\n', "", 1, None, "key 'policy' is missing"),
        ('"policy"', '"polcy"', 1, None, "key 'policy' is missing"),
        ('"policy": "priority"', '"policy": "priority", "extra": 1', 6, None, "there is no key 'extra'"),
        ('"policy": "priority"', '"policy": "priority", "policy": "latency"', 6, None, "key 'policy' stands twice"),
        ('"policy": "priority"', '"policy": 3', 6, None, "'policy' is a text, got 3"),
        ('"fake_npu": "1.0"', '"fake_npu": 1', 5, None, "'fake_npu' is a text, got 1"),
        ('"fake_npu": "1.0"', '"fake_npu": "1.0", "cpu": "2"', 5, None, "key 'cpu' stands twice"),
        ('{"fake_npu": "1.0", "cpu": "1.31"}', "[]", 5, None, "'devices' is an object"),
        ("[1, 3]", "[1, -3]", 7, None, r"'x' is a list of whole numbers, got \[1, -3\]"),
        ("[1, 3]", "[1, NaN]", None, None, "NaN is no number that JSON knows"),
        ("[1, 3]", "[" * 100_000 + "]" * 100_000, None, None, "nested too deeply"),
        ('"name": "/c"', '"name": "/a"', 11, 3, "node '/a' stands twice, first in entry 1"),
        ('"name": "/c", "op_type": "Relu", "output": "", "alone": "01", "wired": "02", "device": "fake_npu"',
         '"name": "/a", "op_type": "Relu", "output": "", "alone": "01", "wired": "02", "device": "cpu"',
         11, 3, "node '/a' is on 'fake_npu' and on 'cpu', first in entry 1"),
        ('"name": "/c"', '"name": ""', 11, 3, "'name' is a text that is not empty, got ''"),
        ('"name": "/c"', '"name": null', 11, 3, "got None"),
        ('"name": "/c"', '"nam": "/c"', 11, 3, "key 'name' is missing"),
        ('"name": "/c"', '"name": "/c", "note": ""', 11, 3, "there is no key 'note'"),
        ('"device": "cpu"', '"device": "gpu"', 10, 2, "device 'gpu', which is none of the plan's devices; did"),
        ('  "nodes": [\n', '  "nodes": [3,\n', 8, 1, "it is an object, got 3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_wrong_is_said_with_line_and_entry(tmp_path, old, new, line, entry, said, end):
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1).replace("\n", end))
    with pytest.raises(PlanFileError, match=said) as caught:
        read_plan(path)
    assert (caught.value.line, caught.value.entry, caught.value.path) == (line, entry, str(path))
    assert str(caught.value).startswith(f"{path} line {line}: " if line else str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("contents", ["", "[]", "3", "null", '"nnadapter plan"', "{}", "\x00"])
def test_what_is_no_plan(tmp_path, contents):
    with pytest.raises(InvalidOptionError, match="this is no"):
        read_plan(written(tmp_path, contents))


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(PlanFileError, match="nope' cannot be read: No such file"):
        read_plan(tmp_path / "nope")
    with pytest.raises(PlanFileError, match="not UTF-8"):
        read_plan(written(tmp_path, b"\xff\xfe{"))
    with pytest.raises(PlanFileError, match="cannot be written"):
        write_plan(tmp_path / "nope" / "plan.json", PLAN)
    with pytest.raises(PlanFileError, match="cannot be written"):
        write_plan(tmp_path, PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
