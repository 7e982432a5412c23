from __future__ import annotations

import pytest

import nnadapter as nna
from nnadapter.errors import InvalidOptionError, RulesError


def test_rules_in_python():
    rules = nna.Rules(pins=(nna.Pin(device="cpu", op_type="Erf"),), limits=nna.Limits(max_segments=4))
    assert rules.pins[0].device == "cpu" and rules.bans == () and rules.limits.max_segments == 4
    assert rules == nna.Rules(pins=[nna.Pin(device="cpu:0", op_type="Erf")], limits=nna.Limits(max_segments=4))
    assert str(rules.pins[0]) == "pin to 'cpu' of op_type 'Erf'"
    assert rules.entry_location(rules.pins[0]) == "pin 1 in Rules"


def test_one_tensor_and_a_list_of_one_are_the_same():
    assert nna.Ban(device="a", from_="x", to=["y"]) == nna.Ban(device="a", from_=["x"], to="y")


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [("Erf", (None, "Erf")), ("ai.onnx::Erf", ("", "Erf")), ("com.acme::Erf", ("com.acme", "Erf"))],
)
def test_domains(op_type, expected):
    assert nna.Pin(device="cpu", op_type=op_type).domain_and_op_type == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "cpu"}, "selects no node; set op_type, name, or from and to"),
        ({"device": "", "name": "a"}, "'device': expected a text of length >= 1, got ''"),
        ({"device": 3, "name": "a"}, "'device': expected a text or nothing, got 3"),
        ({"name": "a"}, "the rule names no device and no precision"),
        ({"precision": "f32", "name": "a"}, "none of float32, .*; did you mean 'float32'"),
        ({"device": "cpu", "precision": "", "name": "a"}, "'precision': expected a text of length >= 1"),
        ({"device": "cpu", "name": " "}, "'name' of the rule is an empty text"),
        ({"device": "cpu", "op_type": ["Erf"]}, "'op_type': expected a text or nothing, got a list of 1"),
        ({"device": "cpu", "op_type": "::Erf"}, "lacks a domain or an op type"),
        ({"device": "cpu", "op_type": "a::"}, "lacks a domain or an op type"),
        ({"device": "cpu", "from_": "x"}, "the rule has 'from' without 'to'"),
        ({"device": "cpu", "to": "x"}, "the rule has 'to' without 'from'"),
        ({"device": "cpu", "from_": [], "to": "x"}, "'from': expected a list of length >= 1, got a list of 0"),
        ({"device": "cpu", "from_": "x", "to": ["y", ""]}, "'to', item 2: expected a text of length >= 1, got ''"),
        ({"device": "cpu", "from_": "x", "to": 3}, "'to': expected a text or a list or nothing, got 3"),
    ],
)
@pytest.mark.parametrize("kind", [nna.Pin, nna.Ban])
def test_wrong_rules(kind, given, message):
    with pytest.raises(RulesError, match=message):
        kind(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_segments": 0}, "'max_segments': expected a whole number >= 1, got 0"),
        ({"max_segments": True}, "got True"),
        ({"max_segments": 2.0}, "whole number"),
        ({"min_nodes": -1}, ">= 0, got -1"),
        ({"min_benefit_ms": float("nan")}, "a number >= 0.0, got nan"),
        ({"min_benefit_ms": float("inf")}, "got inf"),
        ({"min_flops": "1"}, "got '1'"),
        ({"whole_graph": 1}, "expected true or false, got 1"),
    ],
)
def test_wrong_limits(given, message):
    with pytest.raises(InvalidOptionError, match=message):
        nna.Limits(**given)


@pytest.mark.parametrize(
    "given", [{"pins": "cpu"}, {"pins": (nna.Ban(device="cpu", name="a"),)}, {"bans": (3,)}, {"limits": {}}]
)
def test_wrong_types(given):
    with pytest.raises(RulesError, match="of Rules must be"):
        nna.Rules(**given)


def test_contradictions_independent_of_the_model_are_refused():
    erf = {"op_type": "Erf"}
    with pytest.raises(RulesError, match=r"pin 1 in Rules and pin 2 in Rules pin the same nodes .* 'cpu' and 'null'"):
        nna.Rules(pins=(nna.Pin(device="cpu", **erf), nna.Pin(device="null", **erf)))
    with pytest.raises(RulesError, match="pin 1 in Rules and ban 1 in Rules contradict each other"):
        nna.Rules(pins=(nna.Pin(device="cpu", **erf),), bans=(nna.Ban(device="cpu:0", **erf),))
    nna.Rules(pins=(nna.Pin(device="cpu", **erf),) * 2, bans=(nna.Ban(device="null", **erf),))


def test_rules_on_precisions():
    pin, ban = nna.Pin(precision="float32", op_type="Erf"), nna.Ban(device="a", precision="w8a8", name="b")
    assert (str(pin), str(ban)) == ("pin to float32 of op_type 'Erf'", "ban from 'a' in w8a8 of name 'b'")
    assert nna.Rules(pins=(pin, nna.Pin(device="cpu", op_type="Erf"))).pins[0].device is None


@pytest.mark.parametrize(
    ("pins", "bans", "message"),
    [
        (["float32", "w8a8"], [], "pin the same nodes .* to two precisions, 'float32' and 'w8a8'"),
        (["float32"], ["float32"], "are pinned to float32 and banned from it"),
    ],
)
def test_contradictory_precisions(pins, bans, message):
    with pytest.raises(RulesError, match=message):
        nna.Rules(
            pins=[nna.Pin(precision=name, op_type="Erf") for name in pins],
            bans=[nna.Ban(precision=name, op_type="Erf") for name in bans],
        )


def test_a_ban_of_a_device_covers_its_precisions():
    pin = nna.Pin(device="a", precision="float32", op_type="Erf")
    with pytest.raises(RulesError, match="are pinned to 'a' and banned"):
        nna.Rules(pins=[pin], bans=[nna.Ban(device="a", op_type="Erf")])
    nna.Rules(pins=[pin], bans=[nna.Ban(device="a", precision="float16", op_type="Erf")])
