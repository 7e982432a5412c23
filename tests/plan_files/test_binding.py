from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper

from nnadapter.candidates import converted, prepare, with_atoms
from nnadapter.onnx.preparation import specialize, structure_of
from nnadapter.planning import bind_plan, plan_entries
from partition import SUPPORTED, Reason, Unsupported
from tests.models import HEAD, parse
from tests.plan_files.models import DEVICES, Known, edited, model_of, models

NO = Unsupported(Reason.UNSUPPORTED_DTYPE, "there is no float16")


@given(models(), st.data())
def test_the_same_model_gets_the_same_placement(nodes, data):
    known = Known(model_of(nodes))
    placement = [data.draw(st.sampled_from(DEVICES)) for _ in nodes]
    bound = known.bind(known.plan(placement))
    assert [bound.placement[atom] for atom in range(len(nodes))] == placement
    assert bound.unmatched_entries == ()


@pytest.mark.slow
@given(models(), st.data())
def test_unchanged_nodes_bind_after_edits(nodes, data):
    after = data.draw(edited(nodes))
    assume(after)
    known, changed = Known(model_of(nodes)), Known(model_of(after))
    placement = [data.draw(st.sampled_from(DEVICES)) for _ in nodes]
    bound = changed.bind(known.plan(placement))
    device_of = dict(zip(known.outputs, placement, strict=True))
    for atom, output in enumerate(changed.outputs):
        if output in device_of:
            assert bound.placement[atom] == device_of[output]
    gone = [name for name, output in zip(known.names, known.outputs, strict=True) if output not in changed.outputs]
    assert {entry.name for entry in bound.unmatched_entries} <= set(gone)
    assert len(bound.placement) + len(bound.unmatched_entries) == len(nodes)


@pytest.mark.slow
@given(models(), st.randoms(use_true_random=False))
def test_renamed_nodes_and_values_bind_in_order(nodes, random):
    names = {f"v{index}": f"w{index}" for index in range(len(nodes))}
    renamed = [
        helper.make_node(node.op_type, [names.get(name, name) for name in node.input], [names[node.output[0]]], "")
        for node in nodes
    ]
    known, changed = Known(model_of(nodes)), Known(model_of(renamed))
    placement = [random.choice(DEVICES) for _ in nodes]
    bound = changed.bind(known.plan(placement))
    assert [bound.placement[atom] for atom in range(len(nodes))] == placement
    assert bound.unmatched_entries == ()


def numbered(layers, before=()):
    """Return unnamed nodes with numbered outputs in identical layers, as exporters write them."""
    ops = [*before, *(op for _ in range(layers) for op in ("Relu", "Exp", "Neg", "Exp"))]
    return [helper.make_node(op, [str(at) if at else "x"], [str(at + 1)], "") for at, op in enumerate(ops)]


def test_node_before_identical_layers_loses_no_entry():
    known, changed = Known(model_of(numbered(6))), Known(model_of(numbered(6, before=["Sin"])))
    placement = [DEVICES[at // 4 % len(DEVICES)] for at in range(24)]
    bound = changed.bind(known.plan(placement))
    assert bound.unmatched_entries == () and [bound.placement.get(at) for at in range(25)] == [None, *placement]


def test_ambiguous_entries_have_a_reason():
    known, changed = Known(model_of(numbered(6))), Known(model_of(numbered(6, before=["Exp"])))
    bound = changed.bind(known.plan(["a"] * 24))
    exps = sum(entry.op_type == "Exp" for entry in known.plan(["a"] * 24).entries)
    count = len(bound.unmatched_entries)
    assert {entry.reason for entry in bound.unmatched_entries} <= {
        f"it is ambiguous: {count + 1} nodes match, and {count} entries could mean them"
    }
    assert 0 < count <= exps


NODES = [
    helper.make_node("Relu", ["x"], ["p"], "first"),
    helper.make_node("LeakyRelu", ["p"], ["q"], "second", alpha=0.5),
    helper.make_node("Exp", ["q"], ["r"], "third"),
]
PLAN = Known(model_of(NODES)).plan(["a", "b", "cpu"])


def lost(nodes=NODES, devices=DEVICES, **refused):
    bound = Known(model_of(nodes)).bind(PLAN, devices, **refused)
    return {entry.name: (entry.device, entry.reason) for entry in bound.unmatched_entries}


def test_unmatched_entries_have_a_reason():
    assert lost() == {}
    assert lost(NODES[:2]) == {"third": ("cpu", "the node is gone")}
    assert lost(devices=("a", "cpu")) == {"second": ("b", "device 'b' is none of the devices a, cpu")}
    assert lost(a={0: NO}) == {"first": ("a", "'a' refuses it now: unsupported_dtype: there is no float16")}
    other = helper.make_node("LeakyRelu", ["p"], ["q"], "second", alpha=0.25)
    assert lost([NODES[0], other, NODES[2]]) == {
        "second": ("b", "the node has other attributes, constants or inputs now")
    }
    other = helper.make_node("Sin", ["p"], ["q"], "second")
    assert lost([NODES[0], other, NODES[2]]) == {"second": ("b", "the node is Sin now and was LeakyRelu")}


def test_folded_node_is_reported():
    text = f"{HEAD} m (float[2] x, float[2] z) => (float[2] y) {{ [n] a = Neg(z)  [s] y = Add(x, a) }}"
    fixed = parse(text.replace(", float[2] z) => (float[2] y)", ") => (float[2] y) <float[2] z = {1, 2}>"))
    before, after = prepare(parse(text)), prepare(fixed)
    shapes = {"x": (2,), "z": (2,)}
    entries = plan_entries(specialize(before, shapes), structure_of(before.graph, before.nodes), ["a", "a"])
    plan = PLAN.__class__(model="m", devices={"a": "1"}, policy="priority", entries=entries)
    hashes = structure_of(after.graph, after.nodes, after.constants)
    bound = bind_plan(plan, specialize(after, {"x": (2,)}), hashes, ["a"], {"a": [SUPPORTED]})
    assert [(entry.name, entry.reason) for entry in bound.unmatched_entries] == [("n", "the node is folded now")]
    assert bound.placement == {0: "a"}


def test_positional_names_are_not_matched():
    nodes = [helper.make_node("Relu", ["x"], ["p"]), helper.make_node("Relu", ["p"], ["q"])]
    plan = Known(model_of(nodes)).plan(["a", "b"])
    assert [entry.name for entry in plan.entries] == ["Relu_0", "Relu_1"]
    bound = Known(model_of([helper.make_node("Relu", ["x"], ["new"]), *nodes])).bind(plan)
    assert bound.placement == {1: "a", 2: "b"}


GELU = f"""{HEAD} g (float[2, 6] x) => (float[2, 6] y) {{
    root = Constant <value_float = 1.4142135> ()
    one = Constant <value_float = 1.0> ()
    half = Constant <value_float = 0.5> ()
    [d] scaled = Div (x, root)
    [e] bent = Erf (scaled)
    [f] raised = Add (bent, one)
    [g] product = Mul (x, raised)
    [h] y = Mul (product, half)
}}"""


def test_nodes_fused_into_one_atom_are_placed_together():
    prepared = prepare(parse(GELU))
    apart = specialize(prepared, {})
    hashes = structure_of(prepared.graph, prepared.nodes, prepared.constants)
    fused, _ = with_atoms(apart, converted(apart))
    assert fused.graph.atoms == ((0, 1, 2, 3, 4),)
    verdicts = dict.fromkeys(DEVICES, (SUPPORTED,))

    def bind(placement):
        plan = PLAN.__class__(
            model="", devices=dict.fromkeys(DEVICES, "1"), policy="", entries=plan_entries(apart, hashes, placement)
        )
        return bind_plan(plan, fused, hashes, DEVICES, verdicts)

    assert bind(["a"] * 5).placement == {0: "a"}
    bound = bind(["a", "a", "a", "a", "b"])
    assert bound.placement == {} and len(bound.unmatched_entries) == 5
    assert bound.unmatched_entries[0].reason == "it is now in one atom with 'h', which the plan has on 'b'"
    assert [entry.device for entry in plan_entries(fused, hashes, ["b"])] == ["b"] * 5
