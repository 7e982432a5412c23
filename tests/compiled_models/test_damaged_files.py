"""Files with a changed byte or cut short: an nnadapter error, or right results.

The reader tries every byte of some kinds, and sessions some bytes of all kinds; the long form tries all.
"""

from __future__ import annotations

import pytest

import nnadapter as nna
from nnadapter.errors import CompiledModelError, InvalidModelError
from nnadapter.store import PREFIX, Container
from tests.compiled_models.files import KINDS, kind_of, parts_of, same

FLIPS = (0xFF, 0x01)
OF_EACH_LAYOUT = ("a program of fake_npu", "open sizes")
"""One kind with a single plan, one with several."""
every_kind = pytest.mark.parametrize("name", KINDS)


def flipped(contents, at, bits):
    return contents[:at] + bytes([contents[at] ^ bits]) + contents[at + 1 :]


def read(contents):
    """Return all parts of a file; None if reading fails."""
    try:
        container = Container.of(contents)
        return [bytes(container.contents(number)) for number in range(len(container.parts))]
    except CompiledModelError:
        return None


def runs(contents, feed):
    """Return the results of a session; None if it fails."""
    try:
        with nna.InferenceSession(contents) as session:
            results = session.run(None, feed)
            session.report()
            return results
    except InvalidModelError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        pytest.param(name, bits, marks=() if name in OF_EACH_LAYOUT else pytest.mark.sweep)
        for name in KINDS
        for bits in FLIPS
    ],
)
def test_every_flipped_byte_is_found_or_changes_nothing(tmp_path, name, bits, request):
    """Flip all bits of a byte, or one; two kinds cover the layout, because sessions read the others too."""
    whole, _ = kind_of(name, request).written(tmp_path)
    right = [contents for _, contents in parts_of(whole)[0]]
    held = sum(map(len, right)) + PREFIX.size
    found = [read(flipped(whole, at, bits)) for at in range(len(whole))]
    assert all(each in (None, right) for each in found)
    assert found.count(None) >= held


@pytest.mark.slow
@every_kind
def test_every_truncation_is_found(tmp_path, name, request):
    whole, _ = kind_of(name, request).written(tmp_path)
    assert not any(read(whole[:length]) for length in range(len(whole)))
    assert read(whole + b"\0") is None


def check_sessions(whole, expected, feed, flips, step):
    for bits in flips:
        for at in range(0, len(whole), step):
            results = runs(flipped(whole, at, bits), feed)
            assert results is None or same(results, expected), (at, bits)
    for length in range(0, len(whole), step):
        assert runs(whole[:length], feed) is None, length


@pytest.mark.slow
@every_kind
def test_sessions_of_damaged_files(tmp_path, name, request):
    kind = kind_of(name, request)
    check_sessions(*kind.written(tmp_path), kind.feed, FLIPS, 997)


@pytest.mark.sweep
@every_kind
def test_sessions_of_files_damaged_anywhere(tmp_path, name, request):
    kind = kind_of(name, request)
    check_sessions(*kind.written(tmp_path), kind.feed, (*FLIPS, 0x80), 1)
