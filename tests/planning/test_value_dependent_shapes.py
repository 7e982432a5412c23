"""Atoms that need input values to determine shapes, on devices that compile ONNX."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.planning import with_sizes_in_order
from partition import SUPPORTED, Segment, make_plan
from tests.models import HEAD, numbers, parse, run_whole
from tests.partition.small_graphs import graph_of

_LAYER = """
        sizes{n} = Shape (h{n})
        spread{n} = Expand (column, sizes{n})
        zeros{n} = ConstantOfShape (sizes{n})
        sum{n} = ScatterElements <axis = 0, reduction = "add"> (zeros{n}, spread{n}, h{n})
        h{next} = Tanh (sum{n})"""


@pytest.mark.parametrize("layers", [1, 3])
def test_atom_that_waits_for_its_reader_gets_a_final_segment(layers):
    """A graph network sums messages by index. The CPU expands the indices before OpenVINO runs."""
    pytest.importorskip("openvino")
    steps = "".join(_LAYER.format(n=n, next=n + 1) for n in range(layers))
    model = parse(f"""{HEAD} g (float[v, 4] x, int64[v] index) => (float[a, b] y) <int64[1] last = {{-1}}> {{
        column = Unsqueeze (index, last)
        h0 = Sin (x) {steps}
        y = Exp (h{layers})
    }}""")
    with nna.InferenceSession(model, devices="openvino:CPU") as session:
        for rows in (5, 3, 8, 2, 5):
            feed = {"x": numbers(rows, 4), "index": np.arange(rows) // 2}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-5, atol=1e-6)
        plans = session.report().plans
        assert plans.compiled == 2 and plans.served_shapes_text == "one plan for all input shapes", plans


GRAPH = graph_of([(), (), (), (1, 2)], outputs=("v0", "v3"))


class _Parts:
    """Reads of every node, and for the first one the size of `v1`."""

    def reads(self, step):
        own = tuple(name for node in step.nodes for name in GRAPH.nodes[node].reads)
        return (*own, "v1") if 0 in step.nodes else own


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([("a", (0,)), ("b", (1, 2)), ("a", (3,))], [("b", (1, 2)), ("a", (0, 3))]),
        ([("a", (0,)), ("b", (1, 2, 3))], [("b", (1, 2, 3)), ("a", (0,))]),
    ],
    ids=["in a later segment", "in one at the end"],
)
def test_waiting_atom_moves_after_the_size_on_its_device(before, after):
    placement = "".join(next(device for device, atoms in before if atom in atoms) for atom in range(4))
    verdicts = dict.fromkeys("ab", [SUPPORTED] * 4)
    plan = make_plan(GRAPH, "ab", verdicts, placement, [Segment(*each) for each in before], exact=True)
    moved = with_sizes_in_order(plan, _Parts(), set())
    assert [(step.device, step.nodes) for step in moved.steps] == after
    assert with_sizes_in_order(plan, _Parts(), {"a", "b"}) is plan
