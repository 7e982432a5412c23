from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from nnadapter.onnx import mentions

HEAD = '<ir_version: 10, producer_name: "someone", opset_import: ["" : 17, "my" : 1]>'
WORD = b"Einsum"
EINSUM = 'Einsum<equation = "ij->">(x)'


def contents(text, *weights):
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, f"w{at}") for at, array in enumerate(weights))
    return model.SerializeToString()


HOLDING = {
    "a node": f"g (float[2, 4] x) => (y) {{ y = {EINSUM} }}",
    "a branch": f"""g (float[2, 4] x, bool c) => (y) {{
        y = If(c) <then_branch = t () => (p) {{ p = {EINSUM} }}, else_branch = e () => (q) {{ q = ReduceSum(x) }}>
    }}""",
    "a function": f"""g (float[2, 4] x) => (y) {{ y = my.f(x) }}
        <domain: "my", opset_import: ["" : 17]> f (x) => (b) {{ b = {EINSUM} }}""",
}


@pytest.mark.parametrize("text", HOLDING.values(), ids=HOLDING)
@pytest.mark.parametrize("weights", [(), (np.ones(200, np.float32), np.ones(3))], ids=["no weights", "weights"])
def test_word_is_found(text, weights, tmp_path):
    serialized = contents(text, *weights)
    (tmp_path / "model.onnx").write_bytes(serialized)
    assert mentions(serialized, WORD) and mentions(tmp_path / "model.onnx", WORD)
    assert mentions(str(tmp_path / "model.onnx"), WORD)


def test_word_is_found_after_weights():
    model = onnx.parser.parse_model(f"{HEAD} {HOLDING['a node']}")
    fields = [onnx.GraphProto(initializer=[onnx.numpy_helper.from_array(np.ones(300), "w")]), model.graph]
    graph = b"".join(field.SerializeToString() for field in fields)
    assert len(graph) < 1 << 14
    assert mentions(b"\x3a" + bytes([len(graph) & 0x7F | 0x80, len(graph) >> 7]) + graph, WORD)


def test_word_in_weights_is_not_found():
    assert not mentions(contents("g (x) => (y) { y = Relu(x) }", np.frombuffer(WORD * 9, np.uint8)), WORD)


@pytest.mark.parametrize("damaged", [b"", b"\x3a", b"\x3a\xff\xff", b"garbage", b"\x3a\x7f\x0a"])
def test_damaged_model_mentions_nothing(damaged, tmp_path):
    (tmp_path / "damaged").write_bytes(damaged)
    assert not mentions(damaged, WORD) and not mentions(tmp_path / "damaged", WORD)
    assert not mentions(tmp_path / "missing", WORD)
