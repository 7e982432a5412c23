"""Contents of values are followed as far as they can be shapes, and no further."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nnadapter.offering.preparing import prepare
from nnadapter.onnx.building import parse
from nnadapter.onnx.preparation.prepare import specialize
from nnadapter.onnx.propagation import infer
from nnadapter.onnx.values import values_of

HEAD = '<ir_version: 10, opset_import: ["" : 17]> g'
HUGE = (1 << 30) - 1
"""Twice as much is still what a node may make."""
CONSTANTS = "<int64[1] zero = {0}, int64[1] one = {1}>"
MOST_BYTES = 4 << 30
NODES = [
    "y = Gather(x, zero)",
    "y = Add(x, x)",
    "y = Sub(x, x)",
    "y = Mul(x, x)",
    "y = Concat<axis = 0>(x, x)",
    "y = Cast<to = 7>(x)",
    "y = Slice(x, zero, one)",
    "y = Squeeze(x)",
    "y = Unsqueeze(x, zero)",
    "y = Size(x)",
    "h = Relu(x) y = Add(h, h)",
    "s = Shape(x) t = Concat<axis = 0>(s, one) r = Reshape(x, t) f = Reshape(r, s) y = Add(f, f)",
    "c = Cast<to = 9>(zero) y = If(c) <then_branch = t () => (p) { p = Add(x, x) }, "
    "else_branch = e () => (q) { q = Sub(x, x) }>",
]
PROGRAM = f"""
import resource, sys
from nnadapter.onnx.building import parse
import nnadapter as nna
resource.setrlimit(resource.RLIMIT_AS, ({MOST_BYTES}, {MOST_BYTES}))
for text in sys.argv[1:]:
    print(str(nna.partition_report(parse(text), devices=["fake_npu", "cpu"]))[:1])
"""


def test_a_vector_of_any_declared_length_takes_no_memory():
    texts = [f"{HEAD} (float[{HUGE}] x) => (y) {CONSTANTS} {{ {nodes} }}" for nodes in NODES]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *texts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) >= len(NODES)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("(float[n, 4] x) => (y) <int64[1] t = {2}> { s = Shape(x) e = Concat<axis=0>(s, t) y = ConstantOfShape(e) }",
         {"y": ("n", 4, 2)}),
        ("(float[2, 3] x, float[500] v) => (y, z) <int64[1] t = {1}> { s = Shape(x) e = Concat<axis=0>(s, t) "
         "y = Reshape(x, e) z = Mul(v, v) }", {"y": (2, 3, 1), "z": (500,)}),
        ("(float[2, 300] x) => (y, z) <int64[1] a = {0}, int64[1] b = {1}> { s = Shape(x) i = Gather(s, a) "
         "j = Gather(s, b) n = Mul(i, j) y = Reshape(x, n) z = Add(y, y) }", {"y": (600,), "z": (600,)}),
        ("(float[2, 300] x, float[600] v) => (y, z) <int64[1] a = {0}> { s = Shape(x) n = Gather(s, a) "
         "c = Concat<axis=0>(v, v) z = Slice(c, a, n) k = Cast<to = 1>(c) y = Add(k, v) }", {}),
    ],
)  # fmt: skip
def test_shapes_that_are_computed_are_inferred(text, shapes):
    """What inference may leave out of whole graphs is found node by node, so plans miss nothing."""
    model = parse(f"{HEAD} {text}")
    found = specialize(prepare(model), {}).graph.values
    known = values_of(infer(model).values())
    for name, shape in shapes.items():
        assert shape in (found[name].shape, known[name].shape)
