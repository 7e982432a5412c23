"""What exporters spell out gets one verdict; a device that refuses it is asked for its nodes."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import HEAD, numbers, parse, run_whole

GELU = f"""{HEAD}
g (float[n, 6] x) => (float[n, 6] y) {{
    root = Constant <value_float = 1.4142135> ()
    one = Constant <value_float = 1.0> ()
    half = Constant <value_float = 0.5> ()
    before = Relu (x)
    scaled = Div (before, root)
    bent = Erf (scaled)
    raised = Add (bent, one)
    product = Mul (before, raised)
    bowed = Mul (product, half)
    y = Neg (bowed)
}}
"""
PARTS = ["Div", "Erf", "Add", "Mul", "Mul"]


def placed(session):
    return {node.name: node.device for node in session.report().nodes if node.op_type in PARTS}


def devices(*takes):
    return [(f"trial:{index + 1}", {"only": list(only)}) for index, only in enumerate(takes)]


def run_on(*takes, shapes=((2, 6), (5, 6))):
    """Where the parts of the GELU ran, and the number of segments; results are checked."""
    model = parse(GELU)
    with nna.InferenceSession(model, devices=devices(*takes)) as session:
        for shape in shapes:
            x = numbers(*shape)
            (expected,) = run_whole(model, {"x": x})
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)
        return [*placed(session).values()], len(session.report().segments)


def test_a_device_that_knows_the_whole_takes_all_of_it():
    assert run_on(["RELU", "GELU", "NEG"]) == (["trial:1"] * 5, 1)


def test_a_device_that_knows_parts_takes_those():
    assert run_on(["RELU", "MUL", "ADD"]) == (["cpu", "cpu", "trial:1", "trial:1", "trial:1"], 4)


@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")
def test_the_first_device_that_takes_anything_of_it_decides():
    whole, nothing, part = ["RELU", "GELU", "NEG"], ["SIN"], ["MUL"]
    assert run_on(nothing, whole)[0] == ["trial:2"] * 5
    assert run_on(part, whole)[0] == ["cpu", "cpu", "cpu", "trial:1", "trial:1"]
    assert run_on(whole, part)[0] == ["trial:1"] * 5
    assert run_on(nothing, nothing)[0] == ["cpu"] * 5


def test_a_value_that_something_else_reads_keeps_nodes_apart():
    text = GELU.replace("float[n, 6] y", "float[n, 6] y, float[n, 6] bent")
    with nna.InferenceSession(parse(text), devices=devices(["GELU", "MUL"])) as session:
        session.prepare({"x": (2, 6)})
        assert [*placed(session).values()] == ["cpu", "cpu", "cpu", "trial:1", "trial:1"]


def test_the_report_counts_an_atom_once_and_names_every_node():
    report = nna.partition_report(parse(GELU), devices=devices(["GELU"]), input_shapes={"x": (2, 6)})
    flops = {node.name: node.flops for node in report.nodes if node.op_type in PARTS}
    assert [value > 0 for value in flops.values()] == [False, False, False, False, True]
    assert report.coverage.nodes == 5 / 7


def test_an_operation_that_is_switched_off_is_missing_in_what_is_made_of_it():
    device = ("fake_npu", {"switched_off": "Erf"})
    report = nna.partition_report(parse(GELU), devices=device, input_shapes={"x": (2, 6)})
    refused = {node.op_type: node.refusals[0] for node in report.nodes if node.refusals}
    assert refused.keys() == {"Erf"} and refused["Erf"].reason == "switched_off"
    text = f"{HEAD.replace('17', '20')} g (float[2, 6] x) => (float[2, 6] y) {{ y = Gelu (x) }}"
    with pytest.warns(nna.errors.FallbackWarning):
        (node,) = nna.partition_report(parse(text), devices=device).nodes
    assert node.refusals[0].detail == (
        "ERF, which GELU needs, is switched off on this device by its option switched_off"
    )
