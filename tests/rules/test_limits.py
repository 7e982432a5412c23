from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnadapter as nna
from nnadapter.errors import RulesError
from nnadapter.rules import SegmentCandidate, segments_to_drop
from partition import SUPPORTED, Reason, Segment, Unsupported

NO = Unsupported(Reason.UNSUPPORTED_OPERATION, "there is no kernel")
PINNED = Unsupported(Reason.RULE, "pinned to 'a' by pin 1 in r.toml")


def candidates(*parts, benefits=None, flops=None):
    """Return one segment candidate per (device, atoms), in order."""
    return [
        SegmentCandidate(
            segment=Segment(device, tuple(atoms)),
            accelerated=device != "cpu",
            nodes=len(atoms),
            benefit=None if benefits is None else benefits[index],
            flops=None if flops is None else flops[index],
        )
        for index, (device, atoms) in enumerate(parts)
    ]


def supported_except(count=8, **refused):
    """Return verdicts that support everything except `refused`, a mapping of device to {atom: refusal}."""
    return {
        device: tuple(refused.get(device, {}).get(atom, SUPPORTED) for atom in range(count))
        for device in ("a", "b", "cpu")
    }


def limits(**given):
    return nna.Rules(limits=nna.Limits(**given), source="r.toml")


TURNS = candidates(
    ("a", [0]), ("cpu", [1]), ("a", [2, 3]), ("cpu", [4]), ("a", [5, 6, 7]),
    benefits=[3e-3, 0, 1e-3, 0, 2e-3], flops=[10, None, 30, None, 20],
)  # fmt: skip


@pytest.mark.parametrize(
    ("given_limits", "expected"),
    [
        ({}, []),
        ({"max_segments": 3}, []),
        ({"max_segments": 2}, [2]),
        ({"max_segments": 1}, [2]),
        ({"min_nodes": 2}, [0]),
        ({"min_nodes": 3}, [0, 2]),
        ({"min_flops": 20}, [0]),
        ({"min_benefit_ms": 2}, [2]),
        ({"min_benefit_ms": 2.5, "min_nodes": 2}, [0, 2, 4]),
        ({"whole_graph": True}, [0, 2, 4]),
    ],
)
def test_limits_drop_segments(given_limits, expected):
    result = segments_to_drop(limits(**given_limits), TURNS, supported_except())
    assert sorted(result.segments) == expected
    assert all(verdict.reason is Reason.RULE and "in r.toml" in verdict.detail for verdict in result.segments.values())
    assert sum(effect.nodes for effect in result.effects) == sum(TURNS[at].nodes for at in expected)


def test_limits_use_flops_without_costs():
    parts = candidates(("a", [0, 1]), ("cpu", [2]), ("a", [3]), flops=[10, None, 30])
    result = segments_to_drop(limits(max_segments=1), parts, supported_except())
    assert list(result.segments) == [0]
    assert "the segments with the fewest FLOPs are dropped, since costs are not known" in result.effects[0].note


def test_minimum_benefit_needs_costs():
    with pytest.raises(RulesError, match=r"min_benefit_ms in r.toml needs costs, and those of 'a' .* calibrate a"):
        segments_to_drop(limits(min_benefit_ms=1), candidates(("a", [0])), supported_except())


def test_segment_without_alternative_remains():
    parts = candidates(("a", [0]), ("cpu", [1]), ("a", [2, 3]))
    kept = supported_except(b={0: NO}, cpu={0: NO})
    result = segments_to_drop(limits(min_nodes=2), parts, kept)
    assert not result.segments
    assert result.effects[0].note == "1 segment below it kept, because no other device supports every node"
    assert list(segments_to_drop(limits(max_segments=1), parts, kept).segments) == [2]


@pytest.mark.parametrize("given_limits", [{"max_segments": 1}, {"whole_graph": True}])
def test_limits_that_contradict_pins_are_refused(given_limits):
    kept = supported_except(b=dict.fromkeys((0, 2), PINNED), cpu=dict.fromkeys((0, 2), PINNED))
    with pytest.raises(RulesError, match=r"cannot be met: .* stay there, .*rule: pinned to 'a' by pin 1 in r.toml"):
        segments_to_drop(limits(**given_limits), candidates(("a", [0]), ("cpu", [1]), ("a", [2])), kept)


def test_whole_graph_device_gets_everything():
    parts = candidates(("a", [0, 1, 2]), ("b", [3]))
    assert list(segments_to_drop(limits(whole_graph=True), parts, supported_except(a={3: NO})).segments) == [0]
    assert list(segments_to_drop(limits(whole_graph=True), parts, supported_except()).segments) == [1]
    assert not segments_to_drop(limits(whole_graph=True), candidates(("b", [0, 1, 2, 3])), supported_except()).segments


def turns(placement):
    """Cut a chain into runs of one device."""
    parts = []
    for atom, device in enumerate(placement):
        if parts and parts[-1][0] == device:
            parts[-1][1].append(atom)
        else:
            parts.append((device, [atom]))
    return parts


small = st.none() | st.integers(1, 3)


@given(st.lists(st.sampled_from(["a", "b", "cpu"]), min_size=1, max_size=8), small, small, st.booleans(), st.data())
def test_all_limits_are_met_after_some_rounds(placement, most, least, whole, data):
    rules = limits(max_segments=most, min_nodes=least, whole_graph=whole)
    verdicts = {
        device: [
            SUPPORTED if device == "cpu" or device == placed or data.draw(st.booleans()) else NO for placed in placement
        ]
        for device in ("a", "b", "cpu")
    }
    for _ in range(2 * len(placement) + 1):
        parts = candidates(*turns(placement), flops=[1.0] * len(placement))
        result = segments_to_drop(rules, parts, verdicts)
        if not result.segments:
            break
        for at, reason in result.segments.items():
            for atom in parts[at].segment.atoms:
                verdicts[parts[at].segment.device][atom] = reason
        placement = [next(device for device in verdicts if verdicts[device][atom]) for atom in range(len(placement))]
    assert not result.segments
    away = [part for part in parts if part.segment.device != "cpu"]
    assert most is None or len(away) <= most
    assert least is None or all(part.nodes >= least for part in away)
    assert not whole or not away or len(parts) == 1
