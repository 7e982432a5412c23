"""External files named in compiled models; the check on raw bytes is at least as strict as onnx."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper

from nnadapter.drivers.execution_providers import external_data_text, is_plain, program
from nnadapter.drivers.execution_providers.backing import _addition
from nnadapter.drivers.onnxruntime import FLOAT
from nnadapter.onnx import BYTES, NUMBER, varint_bytes
from tests.models import parse

WEIGHTS, COMPILED, NEEDED = "weights", "compiled data", "its dependencies"
OUTSIDE = TensorProto(
    name="w",
    data_type=1,
    dims=[1],
    data_location=1,
    external_data=[onnx.StringStringEntryProto(key="location", value="w")],
)


def node(embed_mode=1, op_type="EPContext", **more):
    message = onnx.NodeProto(op_type=op_type, domain="com.microsoft", input=["x"], output=["y"], name="n")
    numbers = {"main_context": 1, **({} if embed_mode is None else {"embed_mode": embed_mode})}
    message.attribute.extend(AttributeProto(name=name, i=value, type=2) for name, value in numbers.items())
    message.attribute.extend(
        AttributeProto(name=name, s=s, type=3) for name, s in {"ep_cache_context": b"\1\2", **more}.items()
    )
    return message


def model(*nodes, initializers=(), **more):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])
    graph = onnx.GraphProto(name="g", input=[x], output=[y], value_info=[x], node=nodes or [node()])
    graph.initializer.extend(initializers)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    properties = [onnx.StringStringEntryProto(key=program._DEPENDENCIES, value="")]
    return onnx.ModelProto(ir_version=10, graph=graph, opset_import=imports, **{"metadata_props": properties, **more})


def written(message):
    return message.SerializeToString()


def within(part, name="value", op_type="Constant"):
    return onnx.NodeProto(op_type=op_type, output=["z"], attribute=[helper.make_attribute(name, part)])


def graph_of(*nodes, **more):
    return onnx.GraphProto(name="inner", node=nodes, **more)


def function_of(part):
    return onnx.FunctionProto(name="F", domain="d", node=[part])


def training_of(part):
    return onnx.TrainingInfoProto(algorithm=graph_of(part))


def sparse():
    return onnx.SparseTensorProto(values=OUTSIDE, dims=[1])


PLAIN = written(model())
FILE = node(0, ep_cache_context=b"a.bin")


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        (model(), ""),
        (model(node(None)), ""),
        (model(node(), node(0, op_type="Other")), ""),
        (model(initializers=[TensorProto(name="w", data_type=1, dims=[1], float_data=[1])]), ""),
        (model(FILE), COMPILED),
        (model(node(-1)), COMPILED),
        (model(node(), FILE), COMPILED),
        (model(node(ep_context_type=b"dlc")), COMPILED),
        (model(node(onnx_model_filename=b"a.onnx")), COMPILED),
        (model(within(graph_of(FILE), "then_branch", "If")), COMPILED),
        (model(within([graph_of(FILE)], "branches", "If")), COMPILED),
        (model(within(graph_of(within(graph_of(FILE), "body", "Loop")), "then_branch", "If")), COMPILED),
        (model(functions=[function_of(FILE)]), COMPILED),
        (model(training_info=[training_of(FILE)]), COMPILED),
        (model(initializers=[OUTSIDE]), WEIGHTS),
        (model(within(OUTSIDE)), WEIGHTS),
        (model(within([OUTSIDE], "values")), WEIGHTS),
        (model(within(sparse())), WEIGHTS),
        (model(within(graph_of(initializer=[OUTSIDE]), "then_branch", "If")), WEIGHTS),
        (model(functions=[function_of(within(OUTSIDE))]), WEIGHTS),
        (model(metadata_props=[onnx.StringStringEntryProto(key="external_dependencies", value="a.bin")]), NEEDED),
    ],
)
def test_external_data_is_found(contents, text):
    assert external_data_text(written(contents)) == text


def test_ort_format_is_no_provider_program():
    contents = written(onnx.ModelProto(producer_name="  ORTM" + " " * 20)) + PLAIN
    assert contents[4:8] == b"ORTM"
    with pytest.raises(ValueError, match="in ORT format"):
        external_data_text(contents)


def test_fast_check_only_accepts_provider_output():
    assert is_plain(PLAIN)
    assert is_plain(written(model(node(), node())))
    for other in (node(None, op_type="Other"), within(TensorProto(data_type=1)), node(a=b"")):
        assert not is_plain(written(model(node(), other)))


def test_field_numbers_equal_onnx():
    held_to(program.MODEL, onnx.ModelProto.DESCRIPTOR)


def held_to(message, descriptor):
    for tag, inner in message.inner.items():
        field = descriptor.fields_by_number[tag >> 3]
        if inner is not None:
            held_to(inner, field.message_type)
        else:
            assert field.message_type is None
            assert (field.type in (field.TYPE_STRING, field.TYPE_BYTES)) == (tag & 7 == BYTES)
            assert tag & 7 in (BYTES, NUMBER)


def entry(number, value):
    tag, length = varint_bytes(number << 3 | BYTES), varint_bytes(len(value))
    return tag + length + value


def attribute(*parts):
    """Return a model with these fields in an attribute of its compiled node."""
    return entry(7, entry(1, entry(4, b"EPContext") + entry(5, b"".join(parts))))


NAME, MODE = entry(1, b"embed_mode"), lambda number: bytes((3 << 3, *number))


@pytest.mark.parametrize(
    "contents",
    [
        pytest.param(attribute(NAME, MODE([1]), MODE([0])), id="another value behind it"),
        pytest.param(attribute(NAME, MODE([0]), MODE([1])), id="another value before it"),
        pytest.param(attribute(NAME), id="no value"),
        pytest.param(attribute(entry(1, b"notes"), NAME, MODE([0])), id="another name before it"),
        pytest.param(attribute(NAME, entry(1, b"notes"), MODE([0])), id="another name behind it"),
        pytest.param(attribute(NAME, MODE([0x81, 0])), id="a long number"),
        pytest.param(attribute(NAME, MODE([0x81, *[0x80] * 8, 2])), id="more than 64 bits"),
        pytest.param(attribute(b"\x0a\x8a\x00embed_mode", MODE([1])), id="a long length"),
        pytest.param(attribute(b"\x8a\x00\x0aembed_mode", MODE([1])), id="a long tag"),
        pytest.param(attribute(NAME, MODE([1]), b"\x1b\x18\x00\x1c"), id="a group"),
        pytest.param(attribute(NAME, MODE([1]), entry(3, b"\x00")), id="packed"),
        pytest.param(attribute(NAME, MODE([1]), b"\x1d\x00\x00\x00\x00"), id="fixed 32 bits"),
        pytest.param(attribute(NAME, MODE([1]), b"\x00"), id="tag 0"),
        pytest.param(attribute(NAME, MODE([1]), entry(21, b"a")), id="a reference"),
        pytest.param(attribute(NAME, MODE([1]), entry(99, b"a")), id="an unknown field"),
        pytest.param(entry(7, entry(1, entry(4, b"Other") + entry(4, b"EPContext"))), id="two ops"),
        pytest.param(entry(7, entry(5, b"")) + PLAIN, id="a graph before it"),
        pytest.param(PLAIN + entry(7, entry(5, entry(9, b""))), id="a graph behind it"),
        pytest.param(PLAIN + entry(25, b""), id="a function"),
        pytest.param(PLAIN[:-1], id="cut off"),
        pytest.param(PLAIN + b"\x3a\x7f", id="a length behind the end"),
    ],
)
def test_fast_check_refuses_other_encodings(contents):
    assert is_plain(attribute(NAME, MODE([1])))
    assert not is_plain(contents)


def refused_at_first_sight(contents):
    """Return whether onnx finds external files in the main graph, or cannot parse the model."""
    try:
        graph = onnx.load_from_string(contents).graph
        modes = [
            next((node_attribute.i for node_attribute in n.attribute if node_attribute.name == "embed_mode"), 1)
            for n in graph.node
            if n.op_type == "EPContext"
        ]
    except Exception:  # noqa: BLE001  protobuf has errors of its own; some texts are not UTF-8
        return True
    return any(mode != 1 for mode in modes) or any(w.data_location == TensorProto.EXTERNAL for w in graph.initializer)


def refused(contents):
    try:
        return external_data_text(contents) != ""
    except Exception:  # noqa: BLE001  protobuf has errors of its own; some texts are not UTF-8
        return True


@st.composite
def damaged(draw):
    contents = bytearray(draw(st.sampled_from([PLAIN, written(model(FILE)), written(model(initializers=[OUTSIDE]))])))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(contents) - 1))
        piece = draw(st.one_of(st.binary(max_size=3), st.sampled_from(PIECES)))
        contents[at : at + draw(st.integers(0, 12))] = piece
        contents = contents or bytearray(1)
    return bytes(contents)


PIECES = [
    NAME,
    MODE([0]),
    MODE([1]),
    entry(4, b"EPContext"),
    entry(5, NAME + MODE([0])),
    entry(1, written(FILE)),
    b"\x70\x01",
]

OFTEN = ("graph", "node", "op_type", "attribute", "name", "i", "initializer", "data_location")


@st.composite
def odd(draw, descriptor=onnx.ModelProto.DESCRIPTOR, depth=5):
    """Draw a message of onnx's fields, often in a form that no writer produces."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        fields = [field for field in descriptor.fields for _ in range(4 if field.name in OFTEN else 1)]
        field = draw(st.sampled_from(fields))
        if field.message_type is not None and depth:
            parts.append(entry(field.number, draw(odd(field.message_type, depth - 1))))
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            parts.append(
                entry(field.number, draw(st.sampled_from([b"EPContext", b"embed_mode", b"notes", b"\xff", b""])))
            )
        else:
            wire = draw(st.sampled_from([NUMBER] * 6 + [1, 2, 3, 5]))
            number = draw(
                st.sampled_from([b"\x01", b"\x00", b"\x81\x00", b"\x80\x00", b"\xff" * 9 + b"\x01", b"\x01" * 8])
            )
            parts.append(varint_bytes(field.number << 3 | wire) + number)
    return b"".join(parts)


@pytest.mark.slow
@given(st.one_of(damaged(), odd()))
@example(PLAIN)
def test_fast_check_is_as_strict_as_onnx(contents):
    if is_plain(contents):
        assert program._external_content(contents) == ""
    if refused_at_first_sight(contents):
        assert refused(contents)


def test_probe_model_is_one_addition():
    text = """<ir_version: 8, opset_import: ["" : 13]>
        probe (float[1, 4, 4, 4] a, float[1, 4, 4, 4] b) => (float[1, 4, 4, 4] c) { ["nnadapter:0:0"] c = Add(a, b) }"""
    assert onnx.load_from_string(_addition(FLOAT).contents) == parse(text)
