"""Repeated blocks, found by structure hashes and placed identically."""

import re

import pytest
from onnx import TensorProto, helper, numpy_helper

import nnadapter as nna
from nnadapter.candidates import prepare
from nnadapter.planning import Planner, open_setting, place
from tests.models import CHAIN, numbers, parse

DEVICES = [("fake_npu", {"clock": "simulated"})]
LATENCY = nna.Options(policy="latency")
LAYER = ("MatMul", "MatMul", "MatMul", "Softmax", "MatMul", "Add", "Sinh", "MatMul", "Add")


def transformer(layers, width):
    """Return attention layers that differ only in their weights; only the CPU supports Sinh."""
    nodes, weights, last = [], [], "x"
    for layer in range(layers):
        names = [f"{layer}.{part}" for part in ("q", "k", "v", "p", "c", "s", "g", "d", "y")]
        kept = {name: f"{layer}.w{name}" for name in ("q", "k", "v", "d")}
        query, key, value, soft, context, total, gate, down, made = names
        reads = [
            [last, kept["q"]],
            [last, kept["k"]],
            [last, kept["v"]],
            [query],
            [soft, value],
            [context, key],
            [total],
            [gate, kept["d"]],
            [down, last],
        ]
        nodes += [
            helper.make_node(kind, read, [name], f"n{layer}.{at}")
            for at, (kind, read, name) in enumerate(zip(LAYER, reads, names, strict=True))
        ]
        weights += [numpy_helper.from_array(numbers(width, width, seed=layer), name) for name in kept.values()]
        last = made
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [width, width]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("width", [8, 128, 256])
def test_equal_layers_get_the_same_placement(width):
    report = nna.partition_report(transformer(12, width), devices=DEVICES, options=LATENCY)
    layers = {}
    for node in report.nodes:
        layers.setdefault(int(re.match(r"n(\d+)", node.name)[1]), []).append((node.op_type, node.device))
    assert len(layers) == 12
    assert all([kind for kind, _ in layer] == list(LAYER) for layer in layers.values())
    assert len({tuple(layers[at]) for at in range(1, 11)}) == 1  # the first and the last layer have other neighbors


@pytest.mark.parametrize(
    ("model", "asked"), [(transformer(8, 8), True), (parse(CHAIN), False)], ids=["repeats", "does not"]
)
def test_hashes_are_computed_only_for_possible_repeats(model, asked):
    setting = open_setting(DEVICES, LATENCY)
    judgment = Planner(prepare(model), setting).judge({})
    assert "structure" not in vars(judgment.model.prepared)
    placement = place(judgment, setting)
    assert ("structure" in vars(judgment.model.prepared)) == asked
    assert placement.placed.cost <= placement.placed.candidates[-1].cost


def test_report_notes_repeats_solved_once():
    report = nna.partition_report(transformer(20, 128), devices=DEVICES, options=LATENCY)
    assert re.search(r"Placement solved a few of 1\d identical repeats, and priced all\.", report.cost.note)
