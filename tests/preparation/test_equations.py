"""Equations that are none, of which onnx's inference would never come back."""

import onnx
import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.preparation.prepare import prepare

HEAD = '<ir_version: 10, opset_import: ["" : 17, "my" : 1]>'
WRONG = ["i?j->", "..ij->i", "i...j...->i", ".ij", "i.j", "i\tj->i", "ij->i?", "ij->ij->"]


def read(text):
    return onnx.parser.parse_model(f"{HEAD} {text}")


@pytest.mark.parametrize("equation", WRONG)
@pytest.mark.parametrize(
    "graph",
    [
        'g (float[2, 4] x) => (float[n] y) { y = Einsum<equation = "WRONG">(x) }',
        """g (float[2, 4] x, bool c) => (float[n] y) {
            y = If(c) <then_branch = t () => (float[n] p) { p = Einsum<equation = "WRONG">(x) },
                       else_branch = e () => (float[n] q) { q = ReduceSum(x) }>
        }""",
        """g (float[2, 4] x) => (float[n] y) { y = my.f(x) }
        <domain: "my", opset_import: ["" : 17]> f (a) => (b) { b = Einsum<equation = "WRONG">(a) }""",
        """g (float[2, 4] x) => (float[n] y) { y = my.f<how = "WRONG">(x) }
        <domain: "my", opset_import: ["" : 17]> f<how>(a) => (b) { b = Einsum<equation : string = @how>(a) }""",
    ],
)
def test_an_equation_that_is_none_is_told(graph, equation):
    with pytest.raises(InvalidModelError, match=r"^[^\n]*Einsum[^\n]*expected letters and one '...' at most[^\n]*$"):
        prepare(read(graph.replace("WRONG", equation)))


@pytest.mark.parametrize("equation", ["ij->", "i j -> j i", "...ij->i...", "ij", "...", "iI"])
def test_others_pass(equation):
    prepare(read(f'g (float[2, 4] x) => (y) {{ y = Einsum<equation = "{equation}">(x) }}'))
