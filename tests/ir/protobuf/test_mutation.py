"""Mutated files: reading yields a model or a typed error, quickly and without large allocations."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.errors import InvalidModelError
from nnadapter.ir.protobuf import from_bytes, new, to_bytes
from tests.ir.protobuf.saved_models import network, opened, sealed

_CONTENTS, _DATA = to_bytes(network())
_INNER = opened(_CONTENTS)[0].model
_NUMBERS = st.one_of(
    st.integers(-3, 9), st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63)])
)
_REALS = st.sampled_from([0.0, -1.0, 1e300, float("nan"), float("inf")])
_WORDS = st.sampled_from(["", "x", "bias", "CONCAT", "RESHAPE", "TILE", "bool", "int4", "NHWC", "constant", "axis"])


def _survives(contents, files):
    """Read the file under a memory limit; return whether reading succeeded."""
    tracemalloc.start()
    try:
        with suppress(InvalidModelError):
            from_bytes(contents, files)
            return True
        return False
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 << 20


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, len(_INNER) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_changed_bytes_are_refused_or_valid(changes, whole):
    contents = bytearray(_CONTENTS if whole else _INNER)
    for position, byte in changes:
        contents[position] = byte
    _survives(bytes(contents) if whole else sealed(bytes(contents)), {"weights": _DATA})


@given(st.binary(max_size=200), st.integers(0, len(_INNER)), st.integers(0, len(_INNER)))
def test_bytes_inserted_or_removed(inserted, first, last):
    _survives(sealed(_INNER[:first] + inserted + _INNER[last:]), {"weights": _DATA})


def _places(message):
    for field, value in message.ListFields():
        repeated = not isinstance(value, (int, float, str, bytes)) and not hasattr(value, "ListFields")
        if field.message_type is not None:
            for inner in value if repeated else [value]:
                yield from _places(inner)
        yield message, field, value, repeated


def _other(draw, field, value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, bytes):
        return draw(st.binary(max_size=40))
    return draw({int: _NUMBERS, float: _REALS, str: _WORDS}[type(value)])


def _mutate(draw, message):
    places = list(_places(message))
    owner, field, value, repeated = places[draw(st.integers(0, len(places) - 1))]
    if not repeated:
        owner.ClearField(field.name) if field.message_type else setattr(owner, field.name, _other(draw, field, value))
        return
    position = draw(st.integers(0, len(value) - 1))
    kind = draw(st.sampled_from(["remove", "repeat", "change"]))
    if kind == "remove":
        del value[position]
    elif field.message_type is not None:
        value.add().CopyFrom(value[position])
    elif kind == "repeat":
        value.append(value[position])
    else:
        value[position] = _other(draw, field, value[position])


@pytest.mark.slow
@given(st.data())
def test_any_changed_fields(data):
    message = new("Model")
    message.ParseFromString(_INNER)
    for _ in range(data.draw(st.integers(1, 3))):
        with suppress(ValueError):  # a number outside the range of the field
            _mutate(data.draw, message)
    _survives(sealed(message.SerializeToString(deterministic=True)), {"weights": _DATA})


def test_unchanged_model_is_accepted():
    assert _survives(_CONTENTS, {"weights": _DATA})
