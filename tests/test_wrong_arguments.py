"""Arguments of wrong types, each refused with one sentence."""

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.errors import InvalidInputError, InvalidOptionError
from nnadapter.ir import DataType, OperandType
from tests.models import CHAIN, numbers, parse


@pytest.fixture(scope="module")
def session():
    with nna.InferenceSession(parse(CHAIN), devices="fake_npu") as session:
        yield session


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [None, 3, "x", [3], {"x": None}, {"x": 2}, {"x": (1.5, 2)}, [{"x": ("a", 3)}]])
def test_invalid_input_shapes_are_refused(session, shapes):
    with pytest.raises(InvalidInputError, match=r"^input shapes are .*, expected whole numbers by input"):
        session.prepare(shapes)


def test_several_input_shapes_are_accepted(session):
    session.prepare([{"x": [2, 3]}, {"x": (np.int64(2), np.int32(3))}])


@pytest.mark.parametrize("names", [3, object(), "y"])
def test_invalid_output_names_are_refused(session, names):
    with pytest.raises(InvalidInputError, match="^outputs are .*, expected a list of names, or None"):
        session.run(names, {"x": numbers(2, 3)})


@pytest.mark.parametrize("names", [None, [], (), np.array(["y"])])
def test_output_names_are_accepted_in_several_forms(session, names):
    for _ in range(2):  # a repeated run skips checks
        assert len(session.run(names, {"x": numbers(2, 3)})) == 1


@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
def test_onnxruntime_options_of_wrong_type_are_refused(devices):
    model = parse(CHAIN).SerializeToString()
    with pytest.raises(TypeError, match=r"^session options must be an onnxruntime\.SessionOptions, got dict"):
        nna.InferenceSession(model, {"threads": 1}, devices=devices)
    session = nna.InferenceSession(model, devices=devices)
    with pytest.raises(TypeError, match=r"^run options are an onnxruntime\.RunOptions, got dict"):
        session.run(None, {"x": numbers(2, 3)}, {"log": 1})
    with pytest.raises(InvalidOptionError, match=r"pass \['CPUExecutionProvider'\]"):
        nna.InferenceSession(model, providers="CPUExecutionProvider")
    with pytest.raises(InvalidOptionError, match="got 'Options'; sessions take options by name"):
        nna.InferenceSession(model, ["cpu"], nna.Options())


@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
def test_bytes_are_accepted_as_strings(devices):
    text = '<ir_version: 8, opset_import: ["" : 17]> g (string[n] s) => (string[n] t) { t = Identity (s) }'
    with nna.InferenceSession(parse(text), devices=devices, options={"fallback": "allow"}) as session:
        for given, expected in (([b"a", b"b"], ["a", "b"]), ([b"ab", b"c"], ["ab", "c"])):
            assert session.run(None, {"s": np.array(given)})[0].tolist() == expected
        with pytest.raises(InvalidInputError):
            session.run(None, {"s": np.array([b"\xff"])})
        assert session.run(None, {"s": np.array([b"a", b"b"]).astype(str)})[0].tolist() == ["a", "b"]


@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
def test_optional_inputs_may_be_left_out(devices):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (optional(float[n]) o, float[n] x) => (bool h, float[n] y) { h = OptionalHasElement (o) y = Relu (x) }"""
    with nna.InferenceSession(parse(text), devices=devices) as session:
        for given, expected in (({}, False), ({"o": None}, False), ({"o": numbers(2)}, True)):
            assert session.run(["h"], {"x": numbers(3), **given})[0] == expected


@pytest.mark.parametrize("inputs", [None, 3, object()])
def test_invalid_inputs_of_executions_are_refused(inputs):
    builder = nna.ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (2, 3)))
    model = builder.finish(builder.add_operation("RELU", (x,)))
    with nna.Device.acquire("fake_npu") as device, nna.Context(device) as context:
        execution = nna.Execution(nna.Compilation(context, model))
        with pytest.raises(InvalidInputError, match="^inputs must be arrays by name, or a list of them, got"):
            execution.set_inputs(inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "latency"}, "^'policy' is a field of nnadapter.Options.*options=nnadapter.Options"),
        ({"fallbak": "forbid"}, "takes no argument 'fallbak'; did you mean 'fallback'"),
        ({"device": "fake_npu"}, "takes no argument 'device'; did you mean 'devices'"),
        ({"options": nna.Options, "device": 3}, "did you mean 'devices'"),
    ],
)
def test_option_names_as_arguments_are_refused(arguments, message):
    with pytest.raises(InvalidOptionError, match=message):
        nna.InferenceSession(parse(CHAIN), **arguments)


def test_other_arguments_are_ignored_as_in_onnxruntime():
    with nna.InferenceSession(parse(CHAIN).SerializeToString(), enable_fallback=0, whatever=3) as session:
        assert session.devices == ("cpu",)


@pytest.mark.parametrize("values", [{"rules": {"pins": []}}, {"rules": 3}, {"plan": 3}, {"plan": {}}])
def test_options_of_wrong_type_are_refused(values):
    with pytest.raises(InvalidOptionError, match="^option '(rules|plan)' must be .*, got "):
        nna.Options(**values)
