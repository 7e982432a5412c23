from __future__ import annotations

import onnx
import onnxruntime
import pytest
from onnx import parser

from nnadapter.drivers.onnxruntime import Loadable, open_session, without_files

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {{ {} y = Add(x, w) }}'
OUTSIDE = onnx.TensorProto(
    name="w",
    data_type=1,
    dims=[2],
    data_location=onnx.TensorProto.EXTERNAL,
    external_data=[
        onnx.StringStringEntryProto(key=key, value=value)
        for key, value in {"location": "weights", "offset": "0", "length": "8"}.items()
    ],
)


def of_a_weight():
    model = parser.parse_model(TEXT.format(""))
    model.graph.initializer.append(OUTSIDE)
    return model


def of_a_constant():
    model = parser.parse_model(TEXT.format("w = Constant <value = float {0}> ()"))
    model.graph.node[0].attribute[0].t.CopyFrom(OUTSIDE)
    return model


def plain_options():
    """Return options with which ONNX Runtime reads files of the current folder."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return options


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").write_bytes(bytes(8))


@pytest.mark.parametrize("make", [of_a_weight, of_a_constant])
def test_files_of_the_current_folder_are_not_read(folder, make):
    contents = make().SerializeToString()
    onnxruntime.InferenceSession(contents, plain_options(), providers=["CPUExecutionProvider"])
    for options in (None, without_files(plain_options())):
        with pytest.raises(Exception, match=r"/weights|\\weights"):
            open_session(Loadable(contents), options, has_pool=False, spins=False)


def test_caller_options_still_load_external_weights(folder):
    options = plain_options()
    plain = parser.parse_model(TEXT.format("w = Identity(x)")).SerializeToString()
    open_session(Loadable(plain), options, has_pool=False, spins=False)
    onnx.save(of_a_weight(), "model.onnx")
    onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
