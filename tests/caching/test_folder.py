"""Cache files under damage and concurrent use: a read returns the written contents or nothing."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import warnings
from hashlib import sha256
from pathlib import Path

import pytest

from nnadapter.errors import CacheWarning
from nnadapter.store import PARTS, Entry, Folder, Key, Miss, nearest, read_entry, text_part
from tests.caching.nets import network, outcome

FORKED = multiprocessing.get_context("fork")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")


def key(number, **parts):
    return Key("program", {name: text_part({"is": parts.get(name, number)}) for name in PARTS})


def contents(number, nbytes=20_000):
    start = sha256(str(number).encode()).digest()
    return (start * (nbytes // 32 + 1))[:nbytes]


def folder(path, max_bytes=1 << 30):
    return Folder(Path(path), max_bytes)


def checked(opened, number):
    """Return whether there is an entry; check its contents."""
    found = opened.find(key(number))
    if isinstance(found, Miss):
        assert not found.is_defect, found.reason
        return False
    assert bytes(found.made) == contents(number)
    return True


def test_stored_entry_is_found(tmp_path):
    opened = folder(tmp_path / "new" / "folder")
    assert opened.find(key(1)) == Miss("nothing is cached")
    assert opened.keep(key(1), contents(1), 0.5) == ""
    assert checked(opened, 1)
    found = opened.find(key(1))
    assert isinstance(found, Entry) and found.seconds == 0.5
    assert opened.path.stat().st_mode & 0o777 == 0o700


def test_miss_explains_difference_to_the_nearest_entry(tmp_path):
    opened = folder(tmp_path)
    opened.keep(key(1, options="fast"), contents(1), 0.0)
    opened.keep(key(2), contents(2), 0.0)
    assert opened.find(key(1, options="exact")) == Miss(
        "the nearest entry differs in options (is 'fast' there, 'exact' here)"
    )
    assert opened.find(key(3)) == Miss("no similar entry is cached")
    assert nearest(key(3), [key(1).name]) is None


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.fuzz)])
def test_damaged_and_truncated_entries_are_detected(tmp_path, step):
    opened, number = folder(tmp_path), 5
    opened.keep(key(number), b"a program", 0.0)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()

    def found():
        entry = opened.find(key(number))
        if isinstance(entry, Miss):
            return entry
        try:
            return bytes(entry.made)
        except Exception as error:  # noqa: BLE001  checked below
            return error

    results = []
    for at in range(0, len(whole), step):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        results.append(found())
        path.write_bytes(whole[:at])
        results.append(found())
    for result in results:
        defect = isinstance(result, Miss) and result.is_defect
        assert defect or type(result).__name__ == "UnusableError" or result == b"a program", result
    assert sum(isinstance(result, Miss) for result in results) > len(results) / 2


def test_least_recently_used_entry_is_evicted_first(tmp_path):
    opened = folder(tmp_path)
    for number in range(4):
        opened.keep(key(number), contents(number), 0.0)
        time.sleep(0.01)
    assert checked(opened, 0)  # makes it the most recently used
    size = opened.entries()[0].nbytes
    dropped = opened.shrink(2 * size)
    assert len(dropped) == 2
    assert [checked(opened, number) for number in range(4)] == [True, False, False, True]


def test_folder_size_is_bounded(tmp_path):
    opened = folder(tmp_path, 100_000)
    assert "more than max_cache_bytes" in opened.keep(key(0), bytes(100_001), 0.0)
    for number in range(30):
        assert opened.keep(key(number), contents(number), 0.0) == ""
        assert sum(each.nbytes for each in opened.entries()) <= 100_000
    assert checked(opened, 29)


def test_full_folder_is_not_scanned_at_every_write(tmp_path, monkeypatch):
    opened = folder(tmp_path)
    opened.keep(key(0), b"small", 0.0)
    nbytes = opened.entries()[0].nbytes
    full, looks = folder(tmp_path, 200 * nbytes), []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(path) or scan(path))
    for number in range(1, 500):
        assert full.keep(key(number), b"small", 0.0) == ""
    assert len(looks) < 150
    assert 180 * nbytes < sum(each.nbytes for each in full.entries()) <= 200 * nbytes
    assert isinstance(full.find(key(499)), Entry)


def test_single_entry_may_fill_the_folder(tmp_path):
    opened = folder(tmp_path, 100_000)
    for number in range(3):
        assert opened.keep(key(number), bytes(95_000), 0.0) == ""
        assert [each.path.name for each in opened.entries()] == [key(number).name]


def test_unfinished_files_are_removed_after_an_hour(tmp_path):
    opened = folder(tmp_path)
    old, new = tmp_path / ".a.0000.part", tmp_path / ".b.0000.part"
    for each in (old, new):
        each.write_bytes(b"half")
    os.utime(old, (1, 1))
    opened.shrink(0)
    assert not old.exists() and new.exists()
    assert opened.entries() == []


def write_for_ever(path, seed, begun=None):
    if begun is not None:
        begun.set()
    chance, opened = random.Random(seed), folder(path, 600_000)
    while True:
        number = chance.randrange(8)
        opened.keep(key(number), contents(number), 0.0)


@pytest.mark.parametrize("rounds", [12, pytest.param(200, marks=pytest.mark.fuzz)])
def test_killed_writers_leave_no_partial_entries(tmp_path, rounds):
    """Send SIGKILL at random moments."""
    chance, opened = random.Random(0), folder(tmp_path)
    for round_ in range(rounds):
        begun = FORKED.Event()
        writer = FORKED.Process(target=write_for_ever, args=(tmp_path, round_, begun))
        writer.start()
        assert begun.wait(60)
        time.sleep(chance.uniform(0.002, 0.03))
        writer.kill()
        writer.join()
        for number in range(8):
            checked(opened, number)
        for each in opened.entries():
            read_entry(each.path).verify()
    assert opened.entries()


def read_for(path, seconds, seed):
    chance, opened, end = random.Random(seed), folder(path), time.monotonic() + seconds
    hits = 0
    while time.monotonic() < end:
        hits += checked(opened, chance.randrange(8))
    assert hits


def purge_for(path, seconds):
    opened, end = folder(path), time.monotonic() + seconds
    while time.monotonic() < end:
        opened.shrink(random.choice((0, 60_000)))
        time.sleep(0.003)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1, pytest.param(60, marks=pytest.mark.fuzz)])
def test_concurrent_writers_reader_and_purger(tmp_path, seconds):
    writers = [FORKED.Process(target=write_for_ever, args=(tmp_path, seed)) for seed in range(2)]
    others = [
        FORKED.Process(target=read_for, args=(tmp_path, seconds, 3)),
        FORKED.Process(target=purge_for, args=(tmp_path, seconds)),
    ]
    for each in (*writers, *others):
        each.start()
    for each in others:
        each.join()
    for each in writers:
        assert each.is_alive(), "a writer failed"
        each.kill()
        each.join()
    assert [each.exitcode for each in others] == [0, 0]


def in_a_process(function, *arguments):
    """Run a function in a child process, which may change its limits and user."""
    process = FORKED.Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def warned(path, words):
    """Check that a session with an unwritable cache is right, and warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hit, why = outcome(path, network(), "fake_npu")
        outcome(path, network(), "fake_npu")
    assert not hit and "not cached" in why and words in why, why
    assert [each.category for each in caught if words in str(each.message)] == [CacheWarning]


def on_a_full_disk(path):
    sys.dont_write_bytecode = True  # the file limit would truncate bytecode too
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    warned(path, "cannot be written: File too large")


def test_full_disk_only_disables_caching(tmp_path):
    in_a_process(on_a_full_disk, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_invalid_folder_only_disables_caching(tmp_path):
    (tmp_path / "file").touch()
    in_a_process(warned, tmp_path / "file", "cannot be written: ")


def as_another_user(path):
    os.environ["NNADAPTER_CACHE_DIR"] = str(path / "calibrations")
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    warned(path / "empty", "cannot be written: Permission denied")
    assert outcome(path / "full", network(), "fake_npu") == (True, ""), "root's entries are used"
    hit, why = outcome(path / "foreign", network(), "fake_npu")
    assert not hit and "belongs to another user (number 12345)" in why


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to be root, to be somebody else")
def test_read_only_folder_and_entries_of_other_users():
    path = Path(tempfile.mkdtemp())
    try:
        (path / "empty").mkdir()
        for name in ("full", "foreign"):
            outcome(path / name, network(), "fake_npu")
        for each in (path / "foreign").iterdir():
            os.chown(each, 12345, 12345)
        for each in (path, *path.iterdir()):
            each.chmod(0o755)
        in_a_process(as_another_user, path)
    finally:
        shutil.rmtree(path)


def test_pipe_as_an_entry_is_a_miss(tmp_path):
    opened = folder(tmp_path)
    os.mkfifo(tmp_path / key(1).name)
    found = opened.find(key(1))
    assert isinstance(found, Miss) and "0 bytes" in found.reason
    assert "a device or a pipe" in opened.keep(key(1), contents(1), 0.0)


def test_world_writable_entry_is_a_miss(tmp_path):
    opened = folder(tmp_path)
    before = os.umask(0)
    try:
        opened.keep(key(1), contents(1), 0.0)
    finally:
        os.umask(before)
    assert checked(opened, 1)
    (path,) = tmp_path.iterdir()
    path.chmod(0o666)
    assert opened.find(key(1)) == Miss("there is an entry, but any user may write to the file", is_defect=True)
    opened.keep(key(1), contents(1), 0.0)
    assert checked(opened, 1)


@pytest.mark.parametrize("kind", ["program", "plan"])
def test_damaged_entry_warns_and_is_rewritten(tmp_path, kind):
    outcome(tmp_path, network(), "fake_npu")
    (path,) = tmp_path.glob(f"*.{kind}")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(CacheWarning, match="there is an entry, but it is damaged.*it is created again"):
        hit, why = outcome(tmp_path, network(), "fake_npu")
    assert hit == (kind == "plan") and (hit or "it is damaged" in why)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome(tmp_path, network(), "fake_npu") == (True, "")
        read_entry(path).verify()
