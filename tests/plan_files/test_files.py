"""Plan files: round trips, and errors for wrong ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nnadapter.errors import InvalidOptionError, PlanFileError
from nnadapter.planning import PlanEntry, PlanFile, plan_text, read_plan, write_plan

ENTRY = PlanEntry(name="/a", op_type="Relu", output="v", content_hash="01", ancestry_hash="02", device="fake_npu")
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


def test_plan_file_round_trip(tmp_path):
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
    content_hash=texts,
    ancestry_hash=texts,
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
def test_plans_round_trip_in_any_json_layout(tmp_path_factory, plan, indent):
    folder = tmp_path_factory.mktemp("plan")
    text = json.dumps(json.loads(plan_text(plan)), indent=indent, ensure_ascii=indent is None)
    assert read_plan(written(folder, text)) == plan
    assert read_plan(written(folder, "\ufeff" + plan_text(plan).replace("\n", "\r\n"))) == plan


@pytest.mark.slow
def test_truncated_files_are_an_error(tmp_path):
    contents = plan_text(PLAN).encode()
    for length in range(len(contents) - 1):
        path = written(tmp_path, contents[:length])
        with pytest.raises(PlanFileError, match="cut off: .*line") as caught:
            read_plan(path)
        assert caught.value.file == str(path) and "\n" not in str(caught.value)


GOOD = plan_text(PLAN)


@pytest.mark.parametrize(
    ("old", "new", "entry", "key", "said"),
    [
        ('"nnadapter plan"', '"something"', "", "format", "expected 'nnadapter plan', got 'something'; save"),
        ('"format_version": 1', '"format_version": 2', "", "format_version", "expected at most 1, got 2; update"),
        ('"format_version": 1', '"format_version": true', "", "format_version", "expected 1, got True"),
        ('"format_version": 1', '"format_version": 1.0', "", "format_version", "expected 1, got 1.0"),
        ('  "format_version": 1,\n', "", "", "", "not a plan file: it has no key 'format_version'"),
        ('  "policy": "priority",\n', "", "", "policy", "it is missing; save the plan again"),
        ('"policy"', '"polcy"', "", "polcy", r"unknown key; did you mean 'policy'\?"),
        ('"policy": "priority"', '"policy": "priority", "extra": 1', "", "extra", "unknown key"),
        ('"policy": "priority"', '"policy": "priority", "extra` - at `$.x": 1', "", "extra` - at `$.x", "unknown key"),
        ('"policy": "priority"', '"policy": "priority", "policy": "latency"', "", "policy", "occurs twice"),
        ('"policy": "priority"', '"policy": 3', "", "policy", "expected a text, got 3"),
        ('"fake_npu": "1.0"', '"fake_npu": 1', "devices", "fake_npu", "expected a text, got 1"),
        ('"cpu": "1.31"', '"cpu": {}', "devices", "cpu", "expected a text, got an object"),
        ('"fake_npu": "1.0"', '"fake_npu": "1.0", "cpu": "2"', "devices", "cpu", "occurs twice"),
        ('{"fake_npu": "1.0", "cpu": "1.31"}', "[]", "", "devices", "expected an object, got a list of 0"),
        ("[1, 3]", "[1, -3]", "input_shapes.x 2", "", "expected a whole number >= 0, got -3"),
        ("[1, 3]", "[true]", "input_shapes.x 1", "", "expected a whole number, got True"),
        ("[1, 3]", "[1, NaN]", "", "", "NaN is not a finite number"),
        ("[1, 3]", "[1, 1e999]", "", "", "1e999 is not a finite number"),
        ("[1, 3]", f"[1, 1{'0' * 5000}]", "", "", "digits"),
        ("[1, 3]", "[" * 100_000 + "]" * 100_000, "", "", "nested too deeply"),
        ('"name": "/c"', '"name": "/a"', "nodes 3", "", "node '/a' appears twice, first in nodes 1"),
        ('"name": "/c", "op_type": "Relu", "output": "", "alone": "01", "wired": "02", "device": "fake_npu"',
         '"name": "/a", "op_type": "Relu", "output": "", "alone": "01", "wired": "02", "device": "cpu"',
         "nodes 3", "", "node '/a' is on 'fake_npu' and on 'cpu', first in nodes 1"),
        ('"name": "/c"', '"name": ""', "nodes 3", "name", "expected a text of length >= 1, got ''"),
        ('"name": "/c"', '"name": null', "nodes 3", "name", "got nothing"),
        ('"name": "/c", ', "", "nodes 3", "name", "it is missing"),
        ('"name": "/c"', '"nam": "/c"', "nodes 3", "nam", "unknown key; did you mean 'name'"),
        ('"name": "/c"', '"name": "/c", "note": ""', "nodes 3", "note", "unknown key"),
        ('"name": "/c"', '"name": "/c", "name": "/d"', "nodes 3", "name", "occurs twice"),
        ('"device": "cpu"', '"device": "gpu"', "nodes 2", "device", "'gpu', which is none of the plan's devices; did"),
        ('  "nodes": [\n', '  "nodes": [3,\n', "nodes 1", "", "expected an object, got 3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_errors_name_file_entry_and_key(tmp_path, old, new, entry, key, said, end):
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1).replace("\n", end))
    with pytest.raises(PlanFileError, match=said) as caught:
        read_plan(path)
    assert (caught.value.file, caught.value.entry, caught.value.key) == (str(path), entry, key)
    place = [f"plan file '{path}'", entry, key and f"key '{key}'"]
    assert str(caught.value).startswith(f"{', '.join(filter(None, place))}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("contents", ["", "[]", "3", "null", '"nnadapter plan"', "{}", "\x00"])
def test_other_contents_are_refused(tmp_path, contents):
    with pytest.raises(InvalidOptionError, match="not a plan file|does not parse"):
        read_plan(written(tmp_path, contents))


def test_unreadable_and_unwritable_files_are_errors(tmp_path):
    with pytest.raises(PlanFileError, match="nope': it cannot be read: No such file"):
        read_plan(tmp_path / "nope")
    with pytest.raises(PlanFileError, match="not UTF-8 at byte 0"):
        read_plan(written(tmp_path, b"\xff\xfe{"))
    with pytest.raises(PlanFileError, match="cannot be written"):
        write_plan(tmp_path / "nope" / "plan.json", PLAN)
    with pytest.raises(PlanFileError, match="cannot be written"):
        write_plan(tmp_path, PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
