"""Cached measurements of the policy `measured`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from nnadapter.costs import MeasuredCandidate, MeasuredChoice, MeasuredDevice, choice_key, recall, remember
from partition.by_cost.pricing import Origin, OriginKind, all_on

SUPPORTED = Origin(OriginKind.EVERYTHING_SUPPORTED)
CHOICE = MeasuredChoice(
    placement={"a": "fake_npu", "b": "cpu", "c": "fake_npu"},
    timed=(
        MeasuredCandidate(origin=SUPPORTED, seconds=0.5),
        MeasuredCandidate(origin=all_on("cpu"), seconds=0.75),
        MeasuredCandidate(origin=Origin(OriginKind.ONE_REPEAT, (3,), SUPPORTED), seconds=1.0),
    ),
)
NPU = MeasuredDevice(name="fake_npu", version="1.0", options={"threads": 0, "switched_off": ("Erf",)})
CPU = MeasuredDevice(name="cpu", version="1.20", options={})
KEY = choice_key("0123", [NPU, CPU], {"x": (1, 3)}, "0.1")


def test_stored_choice_is_recalled(cache):
    assert recall(KEY) == (None, "")
    file = remember(KEY, CHOICE)
    assert recall(KEY) == (CHOICE, "") and [*(cache / "measured").iterdir()] == [file]


def test_every_part_of_the_key_counts():
    other = MeasuredDevice(name="fake_npu", version="1.1", options=NPU.options)
    keys = {
        KEY,
        choice_key("0124", [NPU, CPU], {"x": (1, 3)}, "0.1"),
        choice_key("0123", [CPU, NPU], {"x": (1, 3)}, "0.1"),
        choice_key("0123", [other, CPU], {"x": (1, 3)}, "0.1"),
        choice_key("0123", [NPU, CPU], {"x": (1, 4)}, "0.1"),
        choice_key("0123", [NPU, CPU], {"x": (1, 3)}, "0.2"),
    }
    assert len(keys) == 6
    assert choice_key("0", [NPU], {"a": (1,), "b": (2,)}, "1") == choice_key("0", [NPU], {"b": (2,), "a": (1,)}, "1")


@pytest.mark.slow
def test_truncated_choice_counts_as_absent():
    file = remember(KEY, CHOICE)
    whole = file.read_bytes()
    for end in range(len(whole) - 1):
        file.write_bytes(whole[:end])
        found, note = recall(KEY)
        assert found is None and str(file) in note and note.endswith("the placement is measured again")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"a": 0', '"a": 7', "placement, key 'a': expected a position in the list of 2 devices, got 7"),
        ('"a": 0', '"a": -1', "placement, key 'a': expected a whole number >= 0, got -1"),
        ('"format_version": 2', '"format_version": 1', "expected 2, got 1"),
        (KEY, KEY[::-1], "key 'key': expected"),
        ('"all_on"', '"all_off"', "timed 2.origin, key 'kind': unknown name; did you mean 'all_on'"),
        ('"all_on"', "{}", "timed 2.origin, key 'kind': unknown name"),
        ('"cpu"\n        ]', "3.5, null\n        ]", "timed 2.origin.parameters 2: expected a whole number"),
        (
            '"parameters": [\n          "cpu"\n        ],',
            "",
            "timed 2, key 'origin': all_on cannot have the parameters",
        ),
        ("0.5", "-0.5", "timed 1, key 'seconds': expected a number >= 0.0, got -0.5"),
    ],
)
def test_wrong_entries_are_reported(old, new, reason):
    file = remember(KEY, CHOICE)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert recall(KEY)[0] is None and reason in recall(KEY)[1]


def test_concurrent_sessions_leave_one_complete_file(cache):
    choices = [
        MeasuredChoice(placement={"n": "cpu"}, timed=(MeasuredCandidate(origin=all_on("cpu"), seconds=float(each)),))
        for each in range(20)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda choice: remember(KEY, choice), choices))
    assert recall(KEY)[0] in choices and len([*(cache / "measured").iterdir()]) == 1


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_deeply_nested_file_is_reported(depth):
    file = remember(KEY, CHOICE)
    deep = '{"kind": "search", "base": ' * depth + "null" + "}" * depth
    file.write_text(file.read_text().replace('"base": null', f'"base": {deep}', 1))
    assert recall(KEY)[0] is None and "nested too deeply" in recall(KEY)[1]
