"""Bans of operation forms from a device, for one driver version and until a date."""

from __future__ import annotations

import json

import pytest

from nnadapter.ir import DataType, Model, ModelBuilder, OperandType
from nnadapter.store import FOLDER, DeviceBans, clear_bans, stored_bans

DAY = 24 * 3600.0


def relu(*shape: int, name: str = "x", op: str = "RELU") -> Model:
    builder = ModelBuilder()
    value = builder.add_input(name, OperandType(DataType.FLOAT32, shape))
    return builder.finish(list(builder.add_operation(op, (value,))))


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def bans(folder, clock, options=None, device="fake_npu"):
    return DeviceBans(device, options or {}, folder, clock)


def test_ban_applies_only_to_the_same_form(clock):
    mine = bans(None, clock)
    assert not mine and mine.find(relu(2, 3)) is None
    mine.add(relu(2, 3), ["a"], "it failed to compile", "compile")
    assert mine and mine.find(relu(2, 3, name="other")) is not None
    assert mine.find(relu(3, 2)) is None and mine.find(relu(2, 3, op="TANH")) is None


def test_size_bans_do_not_count_as_node_bans(clock):
    mine = bans(None, clock)
    mine.add(relu(2, 3), ["a"], "it is too large", "compile", is_size=True)
    assert mine and not mine.of_nodes
    mine.add(relu(2), ["b"], "it failed", "compile")
    assert mine.of_nodes


def test_bans_persist_until_they_expire(tmp_path, clock):
    made = bans(tmp_path, clock).add(relu(2), ["a"], "it failed", "compile", reproducer="case.onnx")
    assert bans(tmp_path, clock).find(relu(2)) == made
    assert "banned since 1970-01-1" in made.text and "because it failed; case.onnx reproduces it" in made.text
    kept = bans(tmp_path, clock)
    assert kept.all == (made,)
    clock.now += 8 * DAY
    assert kept.find(relu(2)) is None and kept.all == () and not bans(tmp_path, clock)


def test_bans_depend_on_device_options_and_driver_version(tmp_path, clock, monkeypatch):
    bans(tmp_path, clock).add(relu(2), ["a"], "it failed", "compile")
    assert not bans(tmp_path, clock, {"vector_width": 4}) and not bans(tmp_path, clock, device="null")
    monkeypatch.setattr("nnadapter.store.keys._digest_of_driver", lambda device: "another")
    assert not bans(tmp_path, clock)


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", b"[1", b"null"])
def test_damaged_bans_are_ignored_and_cleared(tmp_path, clock, damage):
    bans(tmp_path, clock).add(relu(2), ["a"], "it failed", "compile")
    (path,) = (tmp_path / FOLDER).iterdir()
    told = json.loads(path.read_text())
    path.write_bytes(damage)
    assert not bans(tmp_path, clock) and stored_bans(tmp_path) == []
    path.write_text(json.dumps({**told, "until": "tomorrow"}))
    assert not bans(tmp_path, clock)
    assert clear_bans(tmp_path) == 1 and clear_bans(tmp_path) == 0


def test_number_of_bans_is_bounded(clock):
    mine = bans(None, clock)
    made = [mine.add(relu(size), ["a"], "it failed", "compile") for size in range(1, 300)]
    assert len(mine.all) == 256 and made[-1] is None


def test_newest_bans_are_listed_first(tmp_path, clock):
    mine = bans(tmp_path, clock)
    mine.add(relu(2), ["a"], "first", "compile")
    clock.now += DAY
    mine.add(relu(3), ["b"], "second", "accuracy")
    assert [ban.reason for ban in stored_bans(tmp_path)] == ["second", "first"]
