"""Container files: written parts are read back, and any change is refused."""

import os
import subprocess
import sys
import threading
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.errors import CompiledModelError
from nnadapter.files.source_kind import MAGIC, SourceKind, kind_of
from nnadapter.limits import CONTAINER_BYTES
from nnadapter.store import ALIGNMENT, MESSAGES, PAGE, PREFIX, Container, write_container

SMALL = [("a", b"first"), ("b", b""), ("c", bytes(range(200))), ("a", b"first"), ("d", b"x" * 70)]


def written(path, parts):
    numbers = []
    write_container(path, lambda writer: numbers.extend(writer.add(kind, contents) for kind, contents in parts))
    return numbers


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small"
    written(path, SMALL)
    return path.read_bytes()


@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), st.binary(max_size=300)), max_size=12))
def test_parts_round_trip_and_duplicates_are_merged(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("parts") / "file"
    numbers = written(path, parts)
    container = Container.open(path)
    container.verify()
    assert [bytes(container.contents(number)) for number in numbers] == [contents for _, contents in parts]
    assert len(container.parts) == len({contents for _, contents in parts})
    assert all(part.offset % ALIGNMENT == 0 for part in container.parts)


def test_several_buffers_form_one_part(tmp_path):
    write_container(tmp_path / "f", lambda writer: writer.add("x", b"ab", memoryview(b"cd")))
    assert bytes(Container.open(tmp_path / "f").contents(0, "x")) == b"abcd"


def test_background_check_detects_damaged_parts(tmp_path):
    large = [("l", bytes([value]) * (1 << 20)) for value in (1, 2)]
    written(tmp_path / "f", [("s", b"small"), *large])
    contents = bytearray((tmp_path / "f").read_bytes())
    contents[Container.of(contents).parts[2].offset] ^= 1
    container = Container.of(contents)
    container.check_ahead(range(3))
    assert bytes(container.contents(1)) == large[0][1]
    for _ in range(2):
        with pytest.raises(CompiledModelError, match="part 2 .* is corrupt"):
            container.contents(2)
    assert bytes(container.contents(0)) == b"small"


def test_failed_background_check_is_done_at_access(tmp_path, monkeypatch):
    """A forged plan may name missing parts, and a process may have reached its thread limit."""
    written(tmp_path / "f", [("l", bytes(1 << 20))])
    container = Container.open(tmp_path / "f")
    container.check_ahead([7, 1])
    with pytest.raises(CompiledModelError, match="part 7 was requested, expected a number below 1"):
        container.contents(7)

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    container.check_ahead([0])
    assert bytes(container.contents(0)) == bytes(1 << 20)


def test_large_parts_are_page_aligned(tmp_path):
    written(tmp_path / "f", [("s", b"1"), ("l", bytes(PAGE)), ("s", b"2"), ("l", b"y" * (PAGE + 1))])
    assert [part.offset % PAGE for part in Container.open(tmp_path / "f").parts if part.length >= PAGE] == [0, 0]


def test_writing_is_deterministic(tmp_path, small):
    written(tmp_path / "again", SMALL)
    assert (tmp_path / "again").read_bytes() == small


def test_every_flipped_byte_is_detected(small):
    for at in range(len(small)):
        damaged = small[:at] + bytes([small[at] ^ 0x41]) + small[at + 1 :]
        with pytest.raises(CompiledModelError):
            Container.of(damaged).verify()


def test_flipped_byte_gives_right_contents_or_an_error(small):
    right = [contents for _, contents in SMALL[:3]] + [SMALL[4][1]]
    for at in range(len(small)):
        for flip in (1, 0x80, 0xFF):
            damaged = small[:at] + bytes([small[at] ^ flip]) + small[at + 1 :]
            try:
                container = Container.of(damaged)
                found = [bytes(container.contents(number)) for number in range(len(container.parts))]
            except CompiledModelError:
                continue
            assert found == right, at


def test_every_truncation_is_an_error(small):
    for length in range(len(small)):
        with pytest.raises(CompiledModelError):
            Container.of(small[:length])


def test_trailing_bytes_are_an_error(small):
    with pytest.raises(CompiledModelError, match="damaged"):
        Container.of(small + b"\0")


@given(st.binary(max_size=200))
def test_other_bytes_are_an_error(contents):
    with pytest.raises(CompiledModelError, match="not a compiled model"):
        Container.of(contents)


def with_table(rows, data=bytes(4096), **prefix):
    """Return a file with any table."""
    table = MESSAGES.new("Table")
    for row in rows:
        table.parts.add(**row)
    written = table.SerializeToString()
    fields = {"magic": b"\x89NNA\r\n\x1a\n", "version": 1, "zero": 0, "offset": PREFIX.size + len(data)}
    fields |= {"length": len(written), "digest": sha256(written).digest()} | prefix
    return PREFIX.pack(*fields.values()) + data + written


ROW = {"kind": "x", "offset": 64, "length": 64, "crc32": 0, "sha256": bytes(32)}


@pytest.mark.parametrize(
    "rows",
    [
        [ROW | {"offset": 63}],
        [ROW | {"offset": 0}],
        [ROW | {"offset": 4160}],
        [ROW | {"length": 1 << 63}],
        [ROW | {"offset": (1 << 64) - 64, "length": 1 << 40}],
        [ROW | {"sha256": b"short"}],
        [ROW, ROW],
        [ROW | {"offset": 128}, ROW],
        [ROW | {"length": 65}, ROW | {"offset": 128}],
    ],
)
def test_parts_outside_the_file_or_overlapping_are_refused(rows):
    Container.of(with_table([ROW]))
    with pytest.raises(CompiledModelError, match="damaged"):
        Container.of(with_table(rows))


@pytest.mark.parametrize(
    "prefix", [{"zero": 1}, {"version": 0}, {"length": 1 << 60}, {"offset": 1 << 60}, {"offset": 3}]
)
def test_invalid_prefix_is_refused(prefix):
    with pytest.raises(CompiledModelError, match="damaged"):
        Container.of(with_table([ROW], **prefix))


def test_oversized_table_is_refused_before_parsing():
    harmful = b"\x0a\x00" * (CONTAINER_BYTES // 2 + 1)  # empty rows need a hundred times their size in memory
    whole = PREFIX.pack(MAGIC, 1, 0, PREFIX.size, len(harmful), sha256(harmful).digest()) + harmful
    with pytest.raises(CompiledModelError, match=f"its table has {len(harmful)} bytes"):
        Container.of(whole)


def test_oversized_message_is_not_written():
    small = MESSAGES._replace(largest=100)
    table = small.new("Table")
    table.parts.add(kind="x", sha256=bytes(32))
    assert small.parse("Table", small.bytes_of(table)) == table
    table.parts.add(kind="x" * 70)
    for attempt in (lambda: small.bytes_of(table), lambda: small.parse("Table", table.SerializeToString())):
        with pytest.raises(
            CompiledModelError, match=r"a message Table .* expected at most 100; compile the model again"
        ):
            attempt()


def test_newer_version_asks_for_an_update():
    with pytest.raises(CompiledModelError, match=r"version 2.*knows 1 to 1; update nnadapter"):
        Container.of(with_table([ROW], version=2))


def test_unknown_fields_are_refused():
    whole = with_table([])
    table = b"\x78\x01"
    prefix = PREFIX.pack(whole[:8], 1, 0, len(whole), len(table), sha256(table).digest())
    with pytest.raises(CompiledModelError, match="field 15"):
        Container.of(prefix + whole[PREFIX.size :] + table)


def test_wrong_part_kind_or_number_is_refused(small):
    container = Container.of(small)
    for number, kind in ((0, "c"), (4, ""), (-1, "")):
        with pytest.raises(CompiledModelError):
            container.contents(number, kind)


def test_missing_or_empty_file_is_an_error(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        assert kind_of(path) is not SourceKind.COMPILED
        with pytest.raises(CompiledModelError, match="cannot be read"):
            Container.open(path)
    (tmp_path / "empty").touch()
    with pytest.raises(CompiledModelError, match="0 bytes"):
        Container.open(tmp_path / "empty")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_pipe_is_an_immediate_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CompiledModelError, match="0 bytes"):
        Container.open(tmp_path / "pipe")


def test_readers_keep_the_replaced_file(tmp_path):
    path = tmp_path / "f"
    written(path, [("x", b"old" * 9000)])
    container = Container.open(path)
    written(path, [("x", b"new" * 5)])
    assert bytes(container.contents(0)) == b"old" * 9000
    assert bytes(Container.open(path).contents(0)) == b"new" * 5


def test_failed_write_preserves_the_old_file(tmp_path):
    path = tmp_path / "f"
    written(path, [("x", b"old")])

    def fail(writer):
        writer.add("x", bytes(100_000))
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        write_container(path, fail)
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
    assert bytes(Container.open(path).contents(0)) == b"old"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on files")
def test_full_disk_is_an_error_without_leftovers(tmp_path):
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "sys.dont_write_bytecode = True\n"  # the file limit would truncate bytecode too
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "from nnadapter.errors import CompiledModelError\n"
        "from nnadapter.store.container import write_container\n"
        "try: write_container(sys.argv[1], lambda writer: writer.add('x', bytes(1 << 20)))\n"
        "except CompiledModelError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "f"], capture_output=True, text=True, check=True)
    assert "cannot be written" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_is_an_error(tmp_path):
    with pytest.raises(CompiledModelError, match="cannot be written"):
        written(tmp_path / "nowhere" / "f", [])


def test_files_of_more_than_two_gigabytes(tmp_path):
    """A sparse file needs no disk space for its gap."""
    path, gap = tmp_path / "f", (1 << 31) + (1 << 20)
    written(path, [("x", b"begin"), ("y", b"end")])
    small = path.read_bytes()
    table = MESSAGES.new("Table")
    table.ParseFromString(small[Container.of(small)._table_offset :])
    row = table.parts[1]
    moved = with_table([], b"")[: PREFIX.size]
    row.offset += gap
    with path.open("wb") as file:
        file.write(moved + b"begin")
        file.seek(row.offset)
        file.write(b"end")
        file.seek(row.offset + 64)
        contents = table.SerializeToString()
        file.write(contents)
        file.seek(0)
        file.write(PREFIX.pack(small[:8], 1, 0, row.offset + 64, len(contents), sha256(contents).digest()))
    assert bytes(Container.open(path).contents(1)) == b"end"


def test_concurrent_readers_and_writers(tmp_path):
    path, wrong = tmp_path / "f", []
    written(path, [("x", b"0" * 5000)])
    done = threading.Event()

    def read():
        while not done.is_set():
            container = Container.open(path)
            container.verify()
            wrong.extend([] if len(set(bytes(container.contents(0)))) == 1 else ["mixed"])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(30):
        written(path, [("x", b"%d" % (number % 10) * 5000)])
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
