"""Atomic replacement of files."""

import os
import stat

import pytest

from nnadapter.files.atomic_files import replace_file, write_file


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_file_keeps_its_permissions(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"before")
    target.chmod(0o600)
    replace_file(target, lambda file: file.write(b"after"))
    assert target.read_bytes() == b"after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_no_file_takes_the_place_of_a_pipe(pipe):
    with pytest.raises(OSError, match="pipe"):
        replace_file(pipe, lambda file: file.write(b"after"))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(pipe.parent.iterdir()) == [pipe]


def test_a_pipe_is_written_to(pipe):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, lambda file: file.write(b"after"))
        assert os.read(reader, 100) == b"after"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"before")

    def fails(file):
        file.write(b"half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        replace_file(target, fails)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_bytes() == b"before"
