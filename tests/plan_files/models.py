"""Small models with edits, and their plans."""

from __future__ import annotations

import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from nnadapter.candidates import prepare
from nnadapter.onnx.preparation import specialize, structure_of
from nnadapter.planning import PlanFile, bind_plan, plan_entries
from partition import SUPPORTED

DEVICES = ("a", "b", "cpu")
UNARY = ("Relu", "Neg", "Exp", "Sin")


class Known:
    """Model as plan files see it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        prepared = prepare(model)
        self.specialized = specialize(prepared, {"x": (2, 3)})
        self.structure = structure_of(prepared.graph, prepared.nodes, prepared.constants)
        self.names = [node.name for node in self.specialized.graph.nodes]
        self.outputs = [node.outputs[0] for node in self.specialized.graph.nodes]

    def plan(self, placement) -> PlanFile:
        return PlanFile(
            model="m",
            devices=dict.fromkeys(DEVICES, "1"),
            policy="priority",
            input_shapes={"x": (2, 3)},
            entries=plan_entries(self.specialized, self.structure, placement),
        )

    def bind(self, plan, devices=DEVICES, **refused):
        count = len(self.specialized.graph.atoms)
        verdicts = {
            device: [refused.get(device, {}).get(atom, SUPPORTED) for atom in range(count)] for device in DEVICES
        }
        return bind_plan(plan, self.specialized, self.structure, devices, verdicts)


def model_of(nodes):
    """Return a model whose unread values are outputs, so that every node runs."""
    read = {name for node in nodes for name in node.input}
    ends = [node.output[0] for node in nodes if node.output[0] not in read]
    graph = helper.make_graph(
        nodes,
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ends],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@st.composite
def models(draw, most=10):
    """Draw nodes, some named, each producing the value `v` and its index."""
    nodes = []
    for index in range(draw(st.integers(1, most))):
        values = st.sampled_from(["x", *(f"v{before}" for before in range(index))])
        op_type = draw(st.sampled_from([*UNARY, "Add"]))
        inputs = [draw(values) for _ in range(2 if op_type == "Add" else 1)]
        name = draw(st.sampled_from([f"node {index}", ""]))
        nodes.append(helper.make_node(op_type, inputs, [f"v{index}"], name=name))
    return nodes


@st.composite
def edited(draw, nodes):
    """Draw an edit: nodes deleted, inserted and renamed; other nodes keep their names and outputs."""
    kept, instead = [], {}
    for index, node in enumerate(nodes):
        copy = helper.make_node(node.op_type, [instead.get(name, name) for name in node.input], node.output, node.name)
        edit = draw(st.sampled_from(["", "", "", "delete", "insert", "rename"]))
        if edit == "delete":
            instead[node.output[0]] = copy.input[0]
            continue
        if edit == "insert":
            name = draw(st.sampled_from([f"new {index}", ""]))
            kept.append(helper.make_node(draw(st.sampled_from(UNARY)), [copy.input[0]], [f"new {index}"], name=name))
            copy.input[0] = f"new {index}"
        if edit == "rename":
            copy.name = f"renamed {index}"
        kept.append(copy)
    return kept
