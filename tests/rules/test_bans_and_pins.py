from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnadapter as nna
from nnadapter.candidates import prepare
from nnadapter.errors import RulesError
from nnadapter.onnx.preparation import specialize
from nnadapter.rules import apply_rules, read_rules
from partition import SUPPORTED, Reason, Unsupported
from tests.models import HEAD, parse
from tests.partition.small_graphs import edges, graph_of

NO = Unsupported(Reason.UNSUPPORTED_OPERATION, "there is no kernel")
DEVICES = ("a", "b", "cpu")


def applied(rules, verdicts, atoms=((0,), (1,), (2,), (3,)), devices=DEVICES, precisions=None):
    """Apply the rules to a chain of nodes n0 to n3; in the verdicts, `y` means supported."""
    graph = graph_of([[], [0], [1], [2]], atoms=atoms)
    given_verdicts = {
        device: tuple(SUPPORTED if letter == "y" else NO for letter in letters) for device, letters in verdicts.items()
    }
    return apply_rules(rules, graph, graph, range(4), devices, given_verdicts, precisions or {})


def letters(result):
    return {device: "".join("y" if verdict else "." for verdict in of) for device, of in result.verdicts.items()}


def pin(device, name):
    return nna.Pin(device=device, name=name)


def ban(device, name):
    return nna.Ban(device=device, name=name)


ALL = {"a": "yyyy", "b": "yyny", "cpu": "yyyy"}


def test_bans_and_pins():
    rules = nna.Rules(pins=(pin("b", "n1"),), bans=(ban("a", "n[23]"),), source="r.toml")
    result = applied(rules, ALL)
    assert letters(result) == {"a": "y...", "b": "yy.y", "cpu": "y.yy"}
    assert str(result.verdicts["a"][3]) == "rule: ban 1 in r.toml"
    assert str(result.verdicts["cpu"][1]) == "rule: pinned to 'b' by pin 1 in r.toml"
    assert result.verdicts["b"][2] is NO
    assert [(effect.rule, effect.source, effect.nodes, effect.note) for effect in result.effects] == [
        ("pin to 'b' of name 'n1'", "pin 1 in r.toml", 1, ""),
        ("ban from 'a' of name 'n[23]'", "ban 1 in r.toml", 2, ""),
    ]


def test_later_verdicts_are_restricted_too():
    result = applied(nna.Rules(pins=(pin("a", "n0"),), bans=(ban("reference", "n1"),)), ALL)
    late = result.restricted("reference", (SUPPORTED, SUPPORTED, SUPPORTED, NO))
    assert [bool(verdict) for verdict in late] == [False, False, True, False] and late[3] is NO
    assert result.effects[1].nodes == 0 and "'reference' is not one of the devices a, b, cpu" in result.effects[1].note


def test_later_refusal_breaks_a_pin():
    result = applied(nna.Rules(pins=(pin("a", "n0"),), source="r.toml"), ALL)
    graph = graph_of([[], [0], [1], [2]])
    assert result.broken_pin(graph, 1, NO) is None
    assert "pin 1 in r.toml pins node 'n0' to 'a', which refuses it: unsupported" in str(
        result.broken_pin(graph, 0, NO)
    )


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            [pin("a", "n0"), pin("b", "n?")],
            "node 'n0' is pinned to two devices: to 'a' by pin 1 in Rules and to 'b' by",
        ),
        ([pin("a", "n1"), pin("b", "n2")], "nodes 'n1' and 'n2', which are placed together, are pinned to two devices"),
        ([pin("b", "n1")], "pin 1 in Rules pins node 'n1' to 'b', which refuses it: unsupported_operation: there is"),
        ([pin("null", "n1")], "pins node 'n1' to 'null', which is not one of the devices a, b, cpu"),
        ([pin("a", "n0"), ban("a", "n?")], "contradict each other: node 'n0' is pinned to 'a' and banned from it"),
        ([pin("a", "n1"), ban("a", "n2")], "node 'n1' is pinned to 'a' and banned from it"),
        (
            [ban("cpu", "n3"), ban("a", "n3")],
            r"leaves node 'n3' without a device: it is banned from 'cpu', .*'b': unsup",
        ),
    ],
)
def test_contradictory_rules_are_refused(rules, message):
    pins = tuple(rule for rule in rules if isinstance(rule, nna.Pin))
    bans = tuple(rule for rule in rules if isinstance(rule, nna.Ban))
    with pytest.raises(RulesError, match=message) as caught:
        applied(nna.Rules(pins=pins, bans=bans), {"a": "yyy", "b": "yn.", "cpu": "yyy"}, ((0,), (1, 2), (3,)))
    assert "\n" not in str(caught.value)


def test_rule_on_part_of_an_atom_applies_to_all_of_it():
    result = applied(nna.Rules(bans=(ban("a", "n1"),)), {"a": "yyy", "b": "yyy", "cpu": "yyy"}, ((0,), (1, 2), (3,)))
    assert letters(result)["a"] == "y.y"
    assert result.effects[0].nodes == 1
    assert result.effects[0].note == "it applies to 'n2' too, which are placed together with these"


FOLDED = f"""{HEAD} folded (float[2, 3] x) => (float[2, 3] y) {{
    [one] c = Constant <value_float = 1.0> ()
    [two] d = Neg(c)
    [three] a = Add(x, d)
    [four] y = Neg(a)
}}"""


def test_effects_count_folded_nodes():
    specialized = specialize(prepare(parse(FOLDED)), {"x": (2, 3)})
    rules = nna.Rules(
        pins=(nna.Pin(device="cpu", op_type="Neg"), nna.Pin(device="cpu", name="t[w]o")),
        bans=(nna.Ban(device="null", name="four"), nna.Ban(device="cpu", op_type="Erf")),
    )
    graph, positions = specialized.graph, specialized.positions
    result = apply_rules(rules, specialized.model_nodes, graph, positions, ("cpu",), {"cpu": (SUPPORTED,) * 2})
    assert [effect.nodes for effect in result.effects] == [1, 0, 0, 0]
    assert [effect.note for effect in result.effects] == [
        "1 more are folded before the run or unused",
        "it selects only nodes that are folded before the run or unused (1)",
        "'null' is not one of the devices cpu",
        "the model has no op type 'Erf'; known: Add, Constant, Neg",
    ]


names = st.sampled_from(["n0", "n1", "n2", "n3", "n4", "n[012]", "n*", "m"])
devices = st.sampled_from(DEVICES)


@given(
    edges(6),
    st.lists(st.tuples(devices, names), max_size=3),
    st.lists(st.tuples(devices, names), max_size=3),
    st.data(),
)
def test_rules_only_add_refusals(predecessors, pins, bans, data):
    graph = graph_of(predecessors)
    count = len(graph.nodes)
    answers = st.lists(st.sampled_from([SUPPORTED, SUPPORTED, NO]), min_size=count, max_size=count)
    before = {device: tuple(data.draw(answers)) for device in DEVICES}
    try:
        rules = nna.Rules(pins=[pin(*each) for each in pins], bans=[ban(*each) for each in bans])
        result = apply_rules(rules, graph, graph, range(count), DEVICES, before)
    except RulesError:
        return
    after = result.verdicts
    for device in DEVICES:  # a refused node stays refused, for its first reason
        assert all(new is old for new, old in zip(after[device], before[device], strict=True) if not old)
        assert all(new is SUPPORTED or new.reason is Reason.RULE for new in after[device] if new not in (NO,))
    for rule in rules.pins:
        for index, node in enumerate(graph.nodes):
            if rule.name in (node.name, "n*") or (rule.name == "n[012]" and index < 3):
                assert [device for device in DEVICES if after[device][index]] == [rule.device]
    for index in range(count):  # no node loses its last device
        assert any(after[device][index] for device in DEVICES) == any(before[device][index] for device in DEVICES)
    assert len(result.effects) == len(pins) + len(bans)


def test_every_rule_has_an_effect_in_order():
    text = '[[ban]]\ndevice = "null"\nname = "q"\n[[pin]]\ndevice = "cpu"\nname = "n0"\n'
    result = applied(read_rules(text), {"cpu": "yyyy"}, devices=("cpu",))
    assert [effect.source for effect in result.effects] == [
        "pin 1 in the rules' text",
        "ban 1 in the rules' text",
    ]
    assert [effect.nodes for effect in result.effects] == [1, 0]


PRECISIONS = {"a": "float16", "b": "float32", "cpu": "float32"}
"""Precisions of the devices."""


@pytest.mark.parametrize(
    ("pins", "bans", "expected"),
    [
        ([nna.Pin(precision="float32", name="n1")], [], {"a": "y.yy", "b": "yyny", "cpu": "yyyy"}),
        ([nna.Pin(precision="float16", name="n1")], [], {"a": "yyyy", "b": "y.ny", "cpu": "yyyy"}),
        ([nna.Pin(precision="float16", device="a", name="n1")], [], {"a": "yyyy", "b": "y.ny", "cpu": "y.yy"}),
        ([], [nna.Ban(precision="float16", name="n[01]")], {"a": "..yy", "b": "yyny", "cpu": "yyyy"}),
        ([], [nna.Ban(precision="float32", name="n1")], {"a": "yyyy", "b": "y.ny", "cpu": "yyyy"}),
        ([], [nna.Ban(precision="float32", device="a", name="n1")], ALL),
        ([nna.Pin(precision="w8a8", name="n1")], [nna.Ban(precision="w4a16", device="b", name="n1")], ALL),
    ],
)
def test_rules_on_precisions(pins, bans, expected):
    result = applied(nna.Rules(pins=pins, bans=bans), ALL, precisions=PRECISIONS)
    assert letters(result) == {device: of.replace("n", ".") for device, of in expected.items()}


def test_rules_on_precisions_without_effect_are_noted():
    bans = [nna.Ban(precision="w8a8", name="n1"), nna.Ban(device="a", precision="bfloat16", name="n1")]
    first, second = applied(nna.Rules(bans=bans), ALL, precisions=PRECISIONS).effects
    assert (first.nodes, second.nodes) == (0, 0) and "only `nnadapter quantize` and `nnadapter tune`" in first.note
    assert second.note == "'a' in bfloat16 is not one of the devices a in float16, b in float32, cpu in float32"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            {"pins": [nna.Pin(precision="bfloat16", name="n1")]},
            "to bfloat16, which is not one of the devices a in float16",
        ),
        ({"pins": [nna.Pin(device="b", precision="float16", name="n1")]}, "to 'b' in float16, which is not one of"),
        (
            {"pins": [nna.Pin(precision="float32", name="n1"), nna.Pin(precision="float16", name="*")]},
            "node 'n1' is pinned to two precisions: to float32 by pin 1 in Rules and to float16 by pin 2",
        ),
        (
            {"pins": [nna.Pin(precision="float32", name="n1"), pin("a", "*")]},
            "pin 2 in Rules and pin 1 in Rules contradict each other: node 'n1' is pinned to 'a' and banned from it",
        ),
        (
            {"pins": [pin("a", "n1")], "bans": [nna.Ban(precision="float16", name="*")]},
            "pin 1 in Rules and ban 1 in Rules contradict each other",
        ),
    ],
)
def test_contradictory_rules_on_precisions(rules, message):
    with pytest.raises(RulesError, match=message):
        applied(nna.Rules(**rules), ALL, precisions=PRECISIONS)


def test_precision_in_toml():
    (rule,) = read_rules('[[pin]]\nprecision = "float32"\nop_type = "Softmax"\n').pins
    assert rule == nna.Pin(precision="float32", op_type="Softmax")
