from __future__ import annotations

import pytest

from nnadapter.drivers.selection import check_options, select
from nnadapter.errors import DeviceNotFoundError, InvalidOptionError


@pytest.mark.parametrize(
    ("requests", "names"),
    [
        ("trial", ["trial", "cpu"]),
        ("cpu", ["cpu"]),
        (["cpu", "trial"], ["trial", "cpu"]),
        (("trial", {"max_operations": 2}), ["trial", "cpu"]),
        (["null", ("trial", {})], ["null", "trial", "cpu"]),
        (("null", "trial"), ["null", "trial", "cpu"]),
    ],
)
def test_the_cpu_comes_last(requests, names):
    assert [selected.name for selected in select(requests)] == names


def test_implicit_cpu_is_distinguished():
    assert [selected.named for selected in select("trial")] == [True, False]
    assert [selected.named for selected in select(["trial", "cpu"])] == [True, True]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ({"only": "RELU, ADD"}, ("RELU", "ADD")),
        ({"only": ["RELU"]}, ("RELU",)),
        ({}, ()),
    ],
)
def test_options_are_converted_and_completed(requested, expected):
    options = check_options("trial", requested)
    assert options["only"] == expected and options["fault"] == "none" and options["max_operations"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"falt": "none"}, "no option 'falt'; did you mean 'fault'"),
        ({"fault": "maybe"}, "one of none"),
        ({"max_operations": "many"}, "takes int, got 'many'"),
        ({"max_operations": -1}, "at least 0"),
        ({"max_operations": True}, "takes int"),
        ({"only": 3}, "a list of names"),
    ],
)
def test_invalid_options(options, words):
    with pytest.raises(InvalidOptionError, match=words):
        check_options("trial", options)


@pytest.mark.parametrize("requests", [["trial", "trial"], [3], [("trial", 3)], [("trial", {}, 1)]])
def test_invalid_requests(requests):
    with pytest.raises(InvalidOptionError):
        select(requests)


def test_unknown_devices():
    with pytest.raises(DeviceNotFoundError, match="'trail'.*'trial'"):
        select("trail")
