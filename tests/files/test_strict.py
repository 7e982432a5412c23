"""Strict reading of files: each defect gives one short error of the file's kind, with its position."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from nnadapter.errors import NNAdapterError, StoredFileError
from nnadapter.files.documents import FileKind, parse_json


class Color(StrEnum):
    RED = "red"
    GREEN = "green"


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    sizes: tuple[int, ...] = ()


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    items: tuple[Item, ...] = ()
    by_color: Mapping[Color, Mapping[str, Item]] = {}
    numbers: Mapping[str, Mapping[str, float | None]] = {}


KIND = FileKind(name="list", contents=Document, error=StoredFileError, advice="write it again", header={"version": 1})


def refused(document):
    text = document if isinstance(document, str) else json.dumps({"version": 1, **document})
    with pytest.raises(StoredFileError) as caught:
        KIND.parsed(text, "list.json")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert str(caught.value).startswith("list 'list.json'")
    return caught.value.entry, caught.value.key, str(caught.value).removeprefix("list 'list.json'")


@pytest.mark.parametrize(
    ("document", "entry", "key", "said"),
    [
        ({"itens": []}, "", "itens", ", key 'itens': unknown key; did you mean 'items'?"),
        ({"items": [{"name": "a"}, {"name": 1}]}, "items 2", "name",
         ", items 2, key 'name': expected a text, got 1; write it again"),
        ({"items": [{"name": "a", "sizes": [1, "x"]}]}, "items 1.sizes 2", "",
         ", items 1.sizes 2: expected a whole number, got 'x'; write it again"),
        ({"by_color": {"red": {"a": {"name": "a"}, "b\n": {}}}}, "by_color.red.'b\\n'", "name",
         ", by_color.red.'b\\n', key 'name': it is missing; write it again"),
        ({"by_color": {"red": {}, "gren": {}}}, "by_color", "gren",
         ", by_color, key 'gren': unknown name; did you mean 'green'?"),
        ({"numbers": {"a": {"b": 1}, "c": {"d": 1, "e": None, "f": "x", "g": "y"}, "h": {"f": "z"}}}, "numbers.c", "f",
         ", numbers.c, key 'f': expected a number or nothing, got 'x'; write it again"),
        ({"numbers": {"a": {"b": 10**400}}}, "numbers.a", "b",
         ", numbers.a, key 'b': number out of range, got one of 1329 bits; write it again"),
    ],
)  # fmt: skip
def test_error_names_the_position(document, entry, key, said):
    assert refused(document) == (entry, key, said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 1, "items": [{"name": "a", "name": "b"}]}', ", items 1, key 'name': it occurs twice; write it"),
        ('{"version": 1, "version": 1}', ", key 'version': it occurs twice; write it again"),
        ('{"version": 1, "numbers": {"a": {"b": 1, "b": 2}}}', ", numbers.a, key 'b': it occurs twice; write it again"),
        ('{"version": 1, "numbers": -1e999}', ": it does not parse, or is cut off: -1e999 is not a finite number"),
        ('{"version": 1, "numbers": NaN}', ": it does not parse, or is cut off: NaN is not a finite number"),
        (f'{{"version": 1, "items": {"[" * 100_000}', "nested too deeply"),
        (f'{{"version": 1, "items": {"9" * 5000}}}', "it does not parse, or is cut off: Exceeds the limit"),
        ("3", ": it is not a list: it has no key 'version'; write it again"),
        ('{"version": "1"}', ", key 'version': expected 1, got '1'; write it again"),
    ],
)
def test_defects_accepted_by_json_are_refused(text, said):
    assert said in refused(text)[2]


hostile = st.text(st.sampled_from("ab`$.[]-\n \ud800 at"), max_size=12) | st.sampled_from(
    ["items", "name", "red", "x` - at `$.items[0].name", "` - at `key` in `$.by_color", "x` - at `$.numbers[...][...]"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | hostile,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(hostile | st.sampled_from(["by_color", "numbers"]), values, max_size=3))
def test_arbitrary_contents_are_accepted_or_refused(document):
    try:
        found = KIND.parsed(json.dumps({"version": 1, **document}), "f")
    except NNAdapterError as error:
        assert isinstance(error, StoredFileError) and "\n" not in str(error) and error.file == "f"
    else:
        assert set(document) <= {"items", "by_color", "numbers"} and isinstance(found, Document)


@given(st.dictionaries(hostile, values, max_size=3))
def test_parsed_json_equals_the_standard_library(document):
    assert parse_json(json.dumps(document)) == document


def test_toml_is_parsed_likewise():
    kind = FileKind(name="list", contents=Document, error=StoredFileError, advice="mend it", parse=tomllib.loads)
    assert kind.parsed('[[items]]\nname = "a"\r\n', "f") == Document(items=(Item("a"),))
    with pytest.raises(StoredFileError, match=r"list 'f', items 1, key 'sizes': expected a list, got nan; mend it"):
        kind.parsed('[[items]]\nname = "a"\nsizes = nan', "f")


def test_many_keys_are_searched_quickly():
    """The key of a mapping is found by bisection."""
    numbers = {"a": {str(number): 1.0 for number in range(20_000)} | {"last": "x"}}
    assert refused({"numbers": numbers})[:2] == ("numbers.a", "last")
