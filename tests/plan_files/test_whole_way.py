"""Rules and plans on what devices really say, from verdicts to segments."""

from __future__ import annotations

from dataclasses import replace

import pytest

import nnadapter as nna
from nnadapter.errors import RulesError
from nnadapter.offering.preparing import prepare
from nnadapter.onnx.preparation.structure import structure_of
from nnadapter.options import Options
from nnadapter.plan_files.binding import bind_plan, plan_entries
from nnadapter.plan_files.reading import read_plan
from nnadapter.plan_files.values import PlanFile
from nnadapter.plan_files.writing import write_plan
from nnadapter.planning.analysis import Analyzer
from nnadapter.planning.placing import Placer
from nnadapter.planning.targets import open_targets
from nnadapter.process.closing import close_all
from nnadapter.rules import apply_rules, read_rules
from tests.models import SANDWICH, parse

SHAPES = {"x": (2, 4)}
DEVICES = ("fake_npu", "cpu")


@pytest.fixture
def analyzer():
    targets = open_targets([("fake_npu", {"switched_off": ["SIN"]}), "cpu"])
    yield Analyzer(prepare(parse(SANDWICH)), Placer(Options(), targets))
    close_all(target.context for target in targets)


def under(judged, rules):
    specialized = judged.specialized
    graph, positions = specialized.graph, specialized.positions
    applied = apply_rules(rules, specialized.own, graph, positions, DEVICES, judged.verdicts)
    return replace(judged, verdicts=applied.verdicts), applied


def test_rules_move_nodes(analyzer):
    rules = read_rules('[[pin]]\ndevice = "cpu"\nop_type = "Neg"\n[[ban]]\ndevice = "fake_npu"\nop_type = "Add"\n')
    judged, applied = under(analyzer.judge(SHAPES), rules)
    placed = dict(zip((node.op_type for node in judged.graph.nodes), judged.settle().plan.placement, strict=True))
    assert placed["Neg"] == placed["Add"] == "cpu" and placed["Relu"] == "fake_npu"
    assert [effect.nodes for effect in applied.effects] == [1, 1]


def test_a_pin_to_a_device_that_refuses_it(analyzer):
    rules = read_rules('[[pin]]\ndevice = "fake_npu"\nop_type = "Sin"\n')
    with pytest.raises(RulesError, match=r"line 1 pins node 'Sin_1' to 'fake_npu', which refuses it: switched_off: "):
        under(analyzer.judge(SHAPES), rules)


def test_a_plan_saved_and_read_for_other_shapes(analyzer, tmp_path):
    prepared = analyzer.prepared
    structure = structure_of(prepared.graph, prepared.nodes, prepared.constants)
    analysis = analyzer.judge(SHAPES).settle()
    entries = plan_entries(analysis.specialized, structure, analysis.plan.placement)
    devices = {device.name: device.version for device in nna.devices() if device.name in DEVICES}
    plan = PlanFile(model="sandwich", devices=devices, policy="priority", input_shapes=SHAPES, entries=entries)
    write_plan(tmp_path / "plan.json", plan)
    other = analyzer.judge({"x": (7, 4)})
    found = read_plan(tmp_path / "plan.json")
    bound = bind_plan(found, other.specialized, structure, DEVICES, other.verdicts)
    assert tuple(bound.placement[atom] for atom in range(len(other.graph.atoms))) == analysis.plan.placement
    assert bound.lost == ()
