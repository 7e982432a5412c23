import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import nnadapter as nna

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_STEPS, _BATCH, _FEATURES, _UNITS = 5, 3, 4, 6
_FUNCTIONS = ["Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu", "Softsign", "Softplus"]
_HAS_ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu"}


def _inputs(op_type, directions, optional, layout=0, dtype=np.float32):
    gates, generator = _GATES[op_type], np.random.default_rng(3)
    state = (directions, _BATCH, _UNITS)
    shapes = {
        "X": (_STEPS, _BATCH, _FEATURES),
        "W": (directions, gates * _UNITS, _FEATURES),
        "R": (directions, gates * _UNITS, _UNITS),
        "B": (directions, 2 * gates * _UNITS),
        "sequence_lens": (_BATCH,),
        "initial_h": state,
    }
    if op_type == "LSTM":
        shapes |= {"initial_c": state, "P": (directions, 3 * _UNITS)}
    feeds = {
        name: (generator.standard_normal(shape) * 0.7).astype(dtype)
        for name, shape in shapes.items()
        if name in ("X", "W", "R") or name in optional
    }
    if "sequence_lens" in feeds:
        feeds["sequence_lens"] = np.array([5, 2, 4], np.int32)
    for name in {"X", "initial_h", "initial_c"} & set(feeds) if layout else ():
        feeds[name] = np.ascontiguousarray(feeds[name].swapaxes(0, 1))
    names = [name if name in feeds else "" for name in shapes]
    return names, feeds


def _model(op_type, names, feeds, attributes, opset=22):
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    node = helper.make_node(op_type, names, outputs, hidden_size=_UNITS, **attributes)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    kind = TensorProto.FLOAT16 if feeds["X"].dtype == np.float16 else TensorProto.FLOAT
    output_infos = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    graph = helper.make_graph([node], "one", inputs, output_infos)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _compare(op_type, optional=(), opset=22, tolerance=2e-5, **attributes):
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    names, feeds = _inputs(op_type, directions, optional, attributes.get("layout", 0))
    model = _model(op_type, names, feeds, attributes, opset)
    session = nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="forbid"))
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for got, want in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


_ALL = ("B", "sequence_lens", "initial_h", "initial_c", "P")


@pytest.mark.parametrize("optional", [(), ("B",), ("B", "initial_h"), ("sequence_lens",), _ALL])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", _GATES)
def test_directions_and_optional_inputs(op_type, direction, optional):
    _compare(op_type, optional, direction=direction)


@pytest.mark.parametrize("opset", [7, 14, 22])
@pytest.mark.parametrize("op_type", _GATES)
def test_opset_versions(op_type, opset):
    _compare(op_type, ("B",), opset)


@pytest.mark.parametrize("op_type", _GATES)
def test_clip_limits_inputs_of_activations(op_type):
    _compare(op_type, ("B", "initial_h"), clip=0.3)


@pytest.mark.parametrize("function", _FUNCTIONS)
@pytest.mark.parametrize("op_type", _GATES)
def test_activations_of_gates(op_type, function):
    count = {"LSTM": 3, "GRU": 2, "RNN": 1}[op_type]
    # ONNX Runtime's Softplus overflows if states grow.
    names = [function, "Tanh", function] if function != "Softplus" else ["Sigmoid", function, "Tanh"]
    names = names[:count] if count > 1 else [function]
    values = [0.3] * sum(name in _HAS_ALPHA for name in names)
    parameters = {"activation_alpha": values, "activation_beta": values} if values else {}
    _compare(op_type, ("B",), activations=names, tolerance=1e-4, **parameters)


def test_parameters_are_assigned_to_parametric_activations():
    names = ["Sigmoid", "LeakyRelu", "HardSigmoid", "HardSigmoid", "Tanh", "Elu"]
    alphas, betas = [0.3, 0.25, 0.15, 0.7], [0.4, 0.6]
    _compare(
        "LSTM",
        ("B",),
        direction="bidirectional",
        activations=names,
        activation_alpha=alphas,
        activation_beta=betas,
    )


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_gru_linear_before_reset(direction):
    _compare("GRU", ("B", "initial_h"), direction=direction, linear_before_reset=1)
    _compare("GRU", (), direction=direction, linear_before_reset=1)


def test_lstm_with_coupled_gates():
    _compare("LSTM", ("B", "initial_h", "initial_c"), input_forget=1)


def test_half_precision_rounds_once():
    names, feeds = _inputs("LSTM", 1, ("B",), dtype=np.float16)
    session = nna.InferenceSession(
        _model("LSTM", names, feeds, {}), devices="fake_npu", options=nna.Options(fallback="forbid")
    )
    wide = {name: value.astype(np.float32) for name, value in feeds.items()}
    expected = onnxruntime.InferenceSession(_model("LSTM", names, wide, {}).SerializeToString()).run(None, wide)
    for got, want in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float16), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("op_type", _GATES)
def test_batch_first_layout_is_transposed(op_type):
    results = []
    for layout in (0, 1):
        names, feeds = _inputs(op_type, 2, _ALL, layout)
        model = _model(op_type, names, feeds, {"direction": "bidirectional", "layout": layout})
        session = nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="forbid"))
        results.append(session.run(None, feeds))
    (output, *states), (turned, *turned_states) = results
    np.testing.assert_array_equal(turned, output.transpose(2, 0, 1, 3))
    for state, other in zip(states, turned_states, strict=True):
        np.testing.assert_array_equal(other, state.swapaxes(0, 1))
