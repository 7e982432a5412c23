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


def test_replaced_file_keeps_its_permissions(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"before")
    target.chmod(0o600)
    replace_file(target, lambda file: file.write(b"after"))
    assert target.read_bytes() == b"after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_pipe_is_not_replaced_by_a_file(pipe):
    with pytest.raises(OSError, match="pipe"):
        replace_file(pipe, lambda file: file.write(b"after"))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(pipe.parent.iterdir()) == [pipe]


def test_pipe_is_written_directly(pipe):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, lambda file: file.write(b"after"))
        assert os.read(reader, 100) == b"after"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_failed_write_preserves_the_old_file(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"before")

    def fails(file):
        file.write(b"half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        replace_file(target, fails)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_bytes() == b"before"
