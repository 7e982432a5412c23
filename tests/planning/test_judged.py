"""Drafts that shapes share, as long as nodes, atoms and verdicts are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nnadapter.offering.preparing import prepare
from nnadapter.options import Options
from nnadapter.planning.analysis import Analyzer
from nnadapter.planning.placing import Placer
from nnadapter.planning.targets import open_targets
from partition.verdict import SUPPORTED, Reason, Unsupported
from tests.models import HEAD, parse

ROW = f"{HEAD} g (float[N] x) => (float[N] y) {{ a = Relu(x) b = Neg(a) c = Exp(b) y = Abs(c) }}"
NO = Unsupported(Reason.SWITCHED_OFF, "for this test")


@pytest.mark.parametrize(
    ("atoms", "answers", "shared"),
    [
        (((0,), (1,), (2, 3)), (NO, SUPPORTED, SUPPORTED), True),
        (((0, 1), (2,), (3,)), (NO, SUPPORTED, SUPPORTED), False),
        (((0,), (1,), (2, 3)), (SUPPORTED, SUPPORTED, SUPPORTED), False),
    ],
)
def test_a_draft_is_shared_while_nothing_of_it_changes(atoms, answers, shared):
    judged = Analyzer(prepare(parse(ROW)), Placer(Options(), open_targets("fake_npu"))).judge({"x": (2,)})

    def grouped(atoms, answers):
        graph = replace(judged.graph, atoms=atoms)
        return replace(
            judged,
            specialized=replace(judged.specialized, graph=graph),
            verdicts={"fake_npu": answers, "cpu": (SUPPORTED,) * len(atoms)},
        )

    first, second = grouped(((0,), (1,), (2, 3)), (NO, SUPPORTED, SUPPORTED)), grouped(atoms, answers)
    judged.drafts.clear()
    segments, plan = judged.drafts.of(first)
    again, other = judged.drafts.of(second)
    assert (again is segments) == shared
    assert [step.nodes for step in other.steps] == [step.nodes for step in second.draft()[1].steps]
    assert other.graph is second.graph and plan.graph is first.graph
