"""Rules and plan files with verdicts of real devices, up to segments."""

from __future__ import annotations

from dataclasses import replace

import pytest

import nnadapter as nna
from nnadapter import Options
from nnadapter.candidates import prepare
from nnadapter.errors import RulesError
from nnadapter.planning import PlanFile, Planner, bind_plan, open_setting, plan_entries, read_plan, write_plan
from nnadapter.rules import apply_rules, read_rules
from tests.models import SANDWICH, parse

SHAPES = {"x": (2, 4)}
DEVICES = ("fake_npu", "cpu")


@pytest.fixture
def planner():
    setting = open_setting([("fake_npu", {"switched_off": ["SIN"]}), "cpu"], Options())
    yield Planner(prepare(parse(SANDWICH)), setting)
    setting.close()


def under(judgment, rules):
    specialized, support = judgment.model.specialized, judgment.support
    graph, positions = specialized.graph, specialized.positions
    applied = apply_rules(rules, specialized.model_nodes, graph, positions, DEVICES, support.verdicts)
    return replace(judgment, support=replace(support, verdicts=applied.verdicts)), applied


def test_rules_move_nodes(planner):
    rules = read_rules('[[pin]]\ndevice = "cpu"\nop_type = "Neg"\n[[ban]]\ndevice = "fake_npu"\nop_type = "Add"\n')
    judgment, applied = under(planner.judge(SHAPES), rules)
    placement = planner.settle(judgment).plan.placement
    placed = dict(zip((node.op_type for node in judgment.model.graph.nodes), placement, strict=True))
    assert placed["Neg"] == placed["Add"] == "cpu" and placed["Relu"] == "fake_npu"
    assert [effect.nodes for effect in applied.effects] == [1, 1]


def test_pin_to_a_refusing_device_is_an_error(planner):
    rules = read_rules('[[pin]]\ndevice = "fake_npu"\nop_type = "Sin"\n')
    with pytest.raises(
        RulesError, match=r"pin 1 in .* pins node 'Sin_1' to 'fake_npu', which refuses it: switched_off: "
    ):
        under(planner.judge(SHAPES), rules)


def test_saved_plan_applies_to_other_shapes(planner, tmp_path):
    structure = planner.prepared.structure
    found = planner.settle(planner.judge(SHAPES))
    entries = plan_entries(found.model.specialized, structure, found.plan.placement)
    devices = {device.name: device.version for device in nna.devices() if device.name in DEVICES}
    plan = PlanFile(model="sandwich", devices=devices, policy="priority", input_shapes=SHAPES, entries=entries)
    write_plan(tmp_path / "plan.json", plan)
    other = planner.judge({"x": (7, 4)})
    read = read_plan(tmp_path / "plan.json")
    bound = bind_plan(read, other.model.specialized, structure, DEVICES, other.support.verdicts)
    assert tuple(bound.placement[atom] for atom in range(len(other.model.graph.atoms))) == found.plan.placement
    assert bound.unmatched_entries == ()
