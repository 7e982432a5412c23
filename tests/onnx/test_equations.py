import onnx
import pytest

import nnadapter as nna
from nnadapter.candidates import prepare
from nnadapter.errors import InvalidModelError

HEAD = '<ir_version: 10, opset_import: ["" : 17, "my" : 1]>'
WRONG = ["i?j->", "..ij->i", "......->i", "i...j...->i", ".ij", "i.j", "i\tj->i", "ij->i?", "ij->ij->"]


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
        """g (float[2, 4] x, bool c) => (float[n] y) {
            y = If(c) <then_branch = t () => (float[n] p) { p = my.f<how = "WRONG">(x) },
                       else_branch = e () => (float[n] q) { q = ReduceSum(x) }>
        }
        <domain: "my", opset_import: ["" : 17]> f<how>(a) => (b) { b = Einsum<equation : string = @how>(a) }""",
        """g (float[2, 4] x, bool c) => (float[n] y) {
            y = If(c) <then_branch = t () => (float[n] p) { p = my.f<what = "WRONG">(x) },
                       else_branch = e () => (float[n] q) { q = ReduceSum(x) }>
        }
        <domain: "my", opset_import: ["" : 17, "my" : 1]>
        f<what>(a) => (b) { b = my.g<how : string = @what>(a) }
        <domain: "my", opset_import: ["" : 17]> g<how>(a) => (b) { b = Einsum<equation : string = @how>(a) }""",
        """g (float[2, 4] x, bool c) => (float[n] y) {
            y = If(c) <then_branch = t () => (float[n] p) { p = my.f(x) },
                       else_branch = e () => (float[n] q) { q = ReduceSum(x) }>
        }
        <domain: "my", opset_import: ["" : 17]>
        f<how : string = "WRONG">(a) => (b) { b = Einsum<equation : string = @how>(a) }""",
    ],
)
def test_invalid_equation_is_an_error(graph, equation):
    with pytest.raises(InvalidModelError, match=r"^[^\n]*Einsum[^\n]*expected letters and one '...' at most[^\n]*$"):
        prepare(read(graph.replace("WRONG", equation)))


@pytest.mark.parametrize("equation", ["ij->", "i j -> j i", "...ij->i...", "ij", "...", "iI"])
def test_valid_equations_pass(equation):
    prepare(read(f'g (float[2, 4] x) => (y) {{ y = Einsum<equation = "{equation}">(x) }}'))


def test_a_call_with_an_equation_passes():
    text = """g (float[2, 4] x) => (y) { y = my.f<how = "ij->ji", note = "?">(x) }
    <domain: "my", opset_import: ["" : 17]> f<how, note>(a) => (b) { b = Einsum<equation : string = @how>(a) }"""
    prepare(read(text))


def test_einsum_without_output_is_an_error():
    model = read("g (float[2, 4] x) => (float[2, 4] y) { y = Relu(x) }")
    model.graph.node.add(op_type="Einsum", input=["x"]).attribute.append(onnx.helper.make_attribute("equation", "i?"))
    with pytest.raises(InvalidModelError, match="expected letters"):
        prepare(model)


@pytest.mark.parametrize("given", ["model", "bytes", "path"])
def test_invalid_equation_is_found_before_onnx_runtime_loads(given, tmp_path):
    model = read('g (float[2, 4] x) => (float[n] y) { y = Einsum<equation = "i?j->">(x) }')
    onnx.save(model, tmp_path / "model.onnx")
    source = {"model": model, "bytes": model.SerializeToString(), "path": tmp_path / "model.onnx"}[given]
    with pytest.raises(InvalidModelError, match="expected letters"):
        nna.InferenceSession(source, devices="cpu")


def test_invalid_equation_is_found_before_unsupported_nodes():
    text = """g (float[2, 4] x, int16[2] i) => (float[n] y, int16[2] m) {
        y = Einsum<equation = "i?j->">(x)
        m = Max(i, i)
    }"""
    with pytest.raises(InvalidModelError, match="expected letters"):
        nna.InferenceSession(read(text), devices="cpu")
