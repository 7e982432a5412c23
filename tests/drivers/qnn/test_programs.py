from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from nnadapter.drivers.envelope import Envelope
from nnadapter.errors import IncompatibleProgramError
from tests.drivers.qnn.emulator import context
from tests.models import HEAD, parse

X = np.linspace(-2, 2, 3 * 64, dtype=np.float32).reshape(1, 3, 8, 8)
ENVELOPE = Envelope(magic=b"NNAORTEP", version=1)


@pytest.fixture(scope="module")
def qnn():
    return context()


@pytest.fixture(scope="module")
def program(qnn):
    return qnn.compile(parse(f"{HEAD} g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) {{ a = Sin(x) y = Add(a, x) }}"))


@pytest.fixture(scope="module")
def blob(program):
    return program.serialize()


def test_another_context_computes_the_same_from_the_bytes(program, blob):
    deserialized = context().deserialize(blob)
    results = [candidate.create_execution().compute([X])[0] for candidate in (program, deserialized)]
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], np.sin(X) + X, atol=5e-3)


@pytest.mark.parametrize("position", [0, 9, 20, 60, 300, -200, -1])
def test_a_changed_byte_is_found(qnn, blob, position):
    tampered = bytearray(blob)
    tampered[position] ^= 0xFF
    with pytest.raises(IncompatibleProgramError):
        qnn.deserialize(bytes(tampered))


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_truncated_bytes_are_refused(qnn, blob, length):
    with pytest.raises(IncompatibleProgramError):
        qnn.deserialize(blob[:length])


def sealed(blob, header=None, contents=None):
    """Return the program with another header or other contents, and a valid digest."""
    old_header, inside = ENVELOPE.open(blob)
    written = json.dumps({**json.loads(old_header), **(header or {})}).encode()
    return ENVELOPE.close(written, [bytes(inside) if contents is None else contents(bytes(inside))])


def not_embedded(contents):
    model = onnx.load_from_string(contents)
    next(attribute for attribute in model.graph.node[0].attribute if attribute.name == "embed_mode").i = 0
    return model.SerializeToString()


def not_embedded_within(contents):
    """Put the node in both branches of an If: QNN would open the file before the assignment is checked."""
    model = onnx.load_from_string(not_embedded(contents))
    compiled, result = model.graph.node[0], model.graph.output[0]
    branch = onnx.GraphProto(name="branch", node=[compiled], output=[result])
    condition = onnx.helper.make_tensor("condition", onnx.TensorProto.BOOL, [], [True])
    branches = {"then_branch": branch, "else_branch": branch}
    model.graph.node.append(onnx.helper.make_node("If", ["condition"], [result.name], **branches))
    model.graph.initializer.append(condition)
    del model.graph.node[0]
    return model.SerializeToString()


def of_another_kind(contents):
    model = onnx.load_from_string(contents)
    model.graph.node[0].attribute.add(name="ep_context_type", type=onnx.AttributeProto.STRING, s=b"dlc")
    return model.SerializeToString()


def external_weights(contents):
    model = onnx.load_from_string(contents)
    model.graph.initializer.add(name="w", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    return model.SerializeToString()


def damaged_context(contents):
    model = onnx.load_from_string(contents)
    cache = next(attribute for attribute in model.graph.node[0].attribute if attribute.name == "ep_cache_context")
    cache.s = bytes(len(cache.s))
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"header": {"provider": "AcmeExecutionProvider"}}, "provider 'AcmeExecutionProvider', expected 'QNN"),
        ({"header": {"version": "0.0.1"}}, "with version '0.0.1'"),
        ({"header": {"onnxruntime": "1.0"}}, "with onnxruntime '1.0'"),
        ({"header": {"options": {"soc_model": "60"}}}, "with options {'soc_model': '60'}"),
        ({"header": {"outputs": ["z"]}}, "or has other inputs or outputs than recorded"),
        ({"contents": lambda inside: b"no model"}, "contains no ONNX model"),
        ({"contents": not_embedded}, "in another file"),
        ({"contents": not_embedded_within}, "compiled data in another file"),
        ({"contents": of_another_kind}, "compiled data in another file"),
        ({"contents": external_weights}, "weights in another file"),
        ({"contents": damaged_context}, "QNNExecutionProvider refuses the program"),
    ],
)
def test_incompatible_programs_are_refused_with_a_reason(qnn, blob, changes, words):
    with pytest.raises(IncompatibleProgramError, match=words):
        qnn.deserialize(sealed(blob, **changes))


def test_other_options_need_another_program(blob):
    with pytest.raises(IncompatibleProgramError, match="compiled with options"):
        context(soc_model=60).deserialize(blob)
