from __future__ import annotations

from dataclasses import replace

import pytest

from nnadapter import Options
from nnadapter.candidates import prepare
from nnadapter.drivers import SUPPORTED, Reason, Unsupported
from nnadapter.planning import Drafts, Planner, Support, draft, open_setting, place
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
def test_draft_is_shared_if_nothing_changes(atoms, answers, shared):
    setting = open_setting("fake_npu", Options())
    judgment = Planner(prepare(parse(ROW)), setting).judge({"x": (2,)})

    def grouped(atoms, answers):
        model = judgment.model
        specialized = replace(model.specialized, graph=replace(model.graph, atoms=atoms))
        host = (SUPPORTED,) * len(atoms)
        support = Support({"fake_npu": answers, "cpu": host}, host)
        return replace(judgment, model=replace(model, specialized=specialized), support=support)

    first, second = grouped(((0,), (1,), (2, 3)), (NO, SUPPORTED, SUPPORTED)), grouped(atoms, answers)
    drafts = Drafts()
    segments, plan = drafts.of(first, place(first, setting), setting)
    again, other = drafts.of(second, place(second, setting), setting)
    anew = draft(second, place(second, setting), setting)[1]
    assert (again is segments) == shared
    assert [step.nodes for step in other.steps] == [step.nodes for step in anew.steps]
    assert other.graph is second.model.graph and plan.graph is first.model.graph
