from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest

from nnadapter.candidates import prepare
from nnadapter.onnx.preparation import decided, decision_of, decision_values, decisions_text
from tests.models import HEAD, parse

BRANCHES = """<
    then_branch = t () => (float[n, 3] p) { p = Exp(x) },
    else_branch = e () => (float[n, 3] q) { q = Neg(x) }
>"""


def decision(condition, inputs="bool c", constants="int64 two = {2}", outputs=""):
    text = f"{HEAD} g (float[n, 3] x, {inputs}) => (float[n, 3] y{outputs}) <{constants}> {{ {condition} }}"
    return decision_of(prepare(parse(text.replace("BRANCHES", BRANCHES))))


def compute_conditions(found, *given):
    """Compute the conditions from arrays in input order."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(found.conditions.contents, options, providers=["CPUExecutionProvider"])
    fed = dict(zip([each.name for each in session.get_inputs()], given, strict=True))
    return [bool(array) for array in session.run(None, fed)]


@pytest.mark.parametrize(
    ("condition", "inputs"),
    [
        ("s = ReduceMax<keepdims = 0>(x) d = Cast<to = 9>(s) y = If(d) BRANCHES", "bool c"),
        ("s = ReduceMax<keepdims = 0>(m) d = Cast<to = 9>(s) y = If(d) BRANCHES", "int64[65] m"),
        ("s = ReduceMax<keepdims = 0>(m) d = Cast<to = 9>(s) y = If(d) BRANCHES", "int64[k] m"),
        ("s = ReduceMax<keepdims = 0>(m) d = Cast<to = 9>(s) y = If(d) BRANCHES", "float[2] m"),
        ("r = RandomUniform<shape = [1]>() d = Greater(r, f) y = If(d) BRANCHES", "float f"),
        ("z = NonZero(m) s = Size(z) d = Cast<to = 9>(s) y = If(d) BRANCHES", "int64[4] m"),
        ("a = Neg(x) s = Size(a) d = Cast<to = 9>(s) y = If(d) BRANCHES", "bool c"),
    ],
    ids=["data", "many", "open", "reals", "random", "sizes of data", "sizes of values"],
)
def test_conditions_not_decided_by_inputs(condition, inputs):
    assert decision(condition, inputs) is None


def test_equal_and_opposite_conditions_merge():
    result = decision(
        """a = Equal(k, two) b = Equal(k, two) n = Not(a) i = Identity(n) m = Not(i)
        y = If(a) BRANCHES y1 = If(b) BRANCHES y2 = If(n) BRANCHES y3 = If(m) BRANCHES y4 = If(c) BRANCHES""",
        "int64 k, bool c",
        outputs=", float[n, 3] y1, float[n, 3] y2, float[n, 3] y3, float[n, 3] y4",
    )
    assert result.texts == ("Equal(k, 2)", "c")
    assert [result.branches[index] for index in sorted(result.branches)] == [
        (0, True),
        (0, True),
        (0, False),
        (0, True),
        (1, True),
    ]
    assert (result.conditions.inputs, result.conditions.shapes) == (("k", "c"), ())


@pytest.mark.parametrize(("holds", "left"), [(True, ["Exp", "Exp", "Sin"]), (False, ["Sin", "Neg", "Neg"])])
def test_decided_condition_is_reused_in_branches(holds, left):
    branches = BRANCHES.replace("p)", "r)").replace("p =", "r =").replace("q)", "s)").replace("q =", "s =")
    result = decision(
        f"""a = Equal(k, two) y = If(a) <
            then_branch = t () => (float[n, 3] p) {{
                v = If(a) {branches}
                b = Equal(k, two) n = Not(b)
                w = If(n) <
                    then_branch = tt () => (float[n, 3] r) {{ r = Tanh(v) }},
                    else_branch = te () => (float[n, 3] s) {{ s = If(b) BRANCHES }}
                >
                u = Add(w, v) p = Sin(u)
            }},
            else_branch = e () => (float[n, 3] q) {{
                o = Sin(x)
                v = If(a) {branches}
                w = If(a) {branches}
                u = Add(w, v) q = Add(u, o)
            }}
        >""",
        "int64 k",
    )
    chosen = decided(result, (holds,))
    assert (
        decision_of(chosen) is None
        and decisions_text(chosen.branch_decisions) == f"Equal(k, 2) is {str(holds).lower()}"
    )
    assert [node.op_type for node in chosen.nodes if node.op_type in ("If", "Exp", "Neg", "Sin", "Tanh")] == left


def test_long_condition_is_described_by_name():
    chain = " ".join(f"c{at + 1} = Or(c{at}, c{at})" for at in range(200))
    result = decision(f"{chain} y = If(c200) BRANCHES", "bool c0")
    assert result.texts == ("c200",)
    (told_as,) = decision("c1 = Or(c0, c0) c2 = And(c1, c0) y = If(c2) BRANCHES", "bool c0").texts
    assert told_as == "And(Or(c0, c0), c0)"


def test_conditions_computed_from_shapes():
    result = decision(
        """s = Shape<start = 1, end = -1>(c) t = Size(c) u = Shape(x) v = Gather(u, zero)
        a = Squeeze(s) b = Equal(a, two) d = Greater(t, v) y = If(b) BRANCHES y1 = If(d) BRANCHES""",
        "float[k, l, m] c",
        "int64 two = {2}, int64 zero = {0}",
        ", float[n, 3] y1",
    )
    assert result.conditions.inputs == () and sorted(result.conditions.shapes) == ["c", "x"]
    for one, middle, last, count in product((1, 3), (1, 2), (1, 4), (1, 7)):
        shapes = {"c": np.array([one, middle, last]), "x": np.array([count, 3])}
        expected = [middle == 2, one * middle * last > count]
        assert compute_conditions(result, *(shapes[name] for name in result.conditions.shapes)) == expected


def test_names_of_the_model_are_not_reused():
    text = f"""{HEAD} g (float[n, 3] x, bool c) => (float[n, 3] y) <int64 two = {{2}}> {{
        s = Shape<start = 0, end = 1>(x) a = Squeeze(s) b = Equal(a, two) e = And(b, c) y = If(e) {BRANCHES}
    }}"""
    model = parse(text)
    model.graph.input[1].name = model.graph.node[3].input[1] = "x/shape"
    result = decision_of(prepare(model))
    assert compute_conditions(result, np.array(True), np.array([2, 3])) == [True]
    assert compute_conditions(result, np.array(True), np.array([3, 3])) == [False]


def test_model_of_the_chosen_branches():
    result = decision(
        """d = Equal(k, two) y = If(c) <
            then_branch = t () => (float[n, 3] p) {
                p = If(d) BRANCHES
            },
            else_branch = e () => (float[n, 3] q) { q = Neg(x) }
        >""",
        "bool c, int64 k",
    )
    other = decided(result, (False,))
    assert (
        decision_of(other) is None
        and decisions_text(other.branch_decisions) == "c is false"
        and decision_values(other.branch_decisions) == (False,)
    )
    further = decision_of(decided(result, (True,)))
    assert further is not None and further.texts == ("Equal(k, 2)",)
    chosen = decided(further, (False,))
    assert decisions_text(chosen.branch_decisions) == "c is true and Equal(k, 2) is false"
    assert [node.op_type for node in chosen.nodes if node.op_type != "Equal"] == ["Neg"]
    assert chosen.nodes[-1].name.startswith(f"{result.prepared.nodes[1].name}/")
