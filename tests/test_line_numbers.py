"""Every key and element of a document is found, in a line where it stands."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.files.line_numbers import json_lines, toml_lines

TRICKY = '''# [[pin]] in a comment
title = """
[[pin]]
device = "not this one" ""\\""" # still text
"""
other = \'\'\'
[[pin]] \'\'
\'\'\'

[[pin]]  # the first
device = "a # b"
"na.me" = 'it''s'
[[ "pin" ]]
from = [
  "x",  # ] } [[pin]]
  "y",
]
[pin.inner]
deep.er = {a = 1, "b = 2" = [{c = 1979-05-27 07:32:00}]}
[[pin.list]]
[[pin.list]]
z = -inf
[limits]
'''.replace("'it''s'", "'its'")


def paths(value, path=()):
    """Every key and element, from the outside in."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths(inner, (*path, key))


def test_tricky_toml():
    document, lines = tomllib.loads(TRICKY), toml_lines(TRICKY)
    assert set(paths(document)) == set(lines)
    expected = {
        ("title",): 2, ("other",): 6, ("pin", 0): 10, ("pin", 0, "na.me"): 12, ("pin", 1): 13,
        ("pin", 1, "from", 0): 15, ("pin", 1, "from", 1): 16, ("pin", 1, "inner", "deep", "er", "b = 2", 0, "c"): 19,
        ("pin", 1, "list", 1): 21, ("pin", 1, "list", 1, "z"): 22, ("limits",): 23,
    }  # fmt: skip
    assert {path: lines[path] for path in expected} == expected


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_do_not_count(end):
    assert toml_lines(TRICKY.replace("\n", end)) == toml_lines(TRICKY)


def test_inline_arrays_of_tables():
    lines = toml_lines('pin = [ { device = "a", name = "b" },\n\n  { device = "c" } ]\nlimits.max_segments = 3')
    assert lines["pin", 0, "name"] == 1 and lines["pin", 1] == lines["pin", 1, "device"] == 3
    assert lines["limits", "max_segments"] == lines["limits",] == 4


texts = st.text(st.sampled_from("ab\"'\\\n#[]{}=,:. é\u2028\x85"), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(texts, values, max_size=4), st.sampled_from([None, 0, 2]), st.booleans())
def test_json_is_gone_through_whole(document, indent, ascii_only):
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    lines = json_lines(text)
    assert len(lines) == len(list(paths(document)))
    if indent is not None:  # the keys of what is indented stand in the lines that are said
        found = text.split("\n")
        assert all(isinstance(path[-1], int) or '"' in found[line - 1] for path, line in lines.items())


@given(st.lists(st.dictionaries(texts, texts, max_size=3), max_size=4), texts)
def test_toml_is_gone_through_whole(tables, comment):
    def quoted(text):
        return json.dumps(text, ensure_ascii=True)

    written, expected = [], {}
    for number, table in enumerate(tables):
        written.append(f"# {comment.splitlines()[0] if comment.splitlines() else ''}")
        written.append("[[t]]")
        expected["t", number] = len(written)
        for key, value in table.items():
            written.append(f"{quoted(key)} = {quoted(value)}")
            expected["t", number, key] = len(written)
    text = "\n".join(written)
    assert tomllib.loads(text) == ({"t": tables} if tables else {})
    found = toml_lines(text)
    assert {path: found[path] for path in expected} == expected
