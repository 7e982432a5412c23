"""`nnadapter export`, and `nnadapter report --save-segments`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import nnadapter as nna
from nnadapter.ir import DataType, OperandType
from nnadapter.ir.protobuf import save
from nnadapter.onnx import parse, save_model
from tests.models import run_whole

CHAIN = (
    '<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y, float[1,4] a) '
    "{ a = Sin (x) b = Relu (a) c = Cos (b) y = Add (c, a) }"
)


def weighted():
    builder = nna.ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (1, 200)))
    weight = builder.add_constant("weight", np.linspace(-1, 1, 40000, dtype=np.float32).reshape(200, 200))
    return builder.finish(builder.add_operation("FULLY_CONNECTED", (x, weight), outputs=["y"]))


def test_exported_model_runs_in_onnxruntime(call, folder):
    save(weighted(), "small.model")
    assert call("export small.model -o small.onnx").stdout == "small.onnx: 1 nodes for 1 operations, opset 24\n"
    session = onnxruntime.InferenceSession("small.onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(["y"], {"x": np.ones((1, 200), np.float32)})
    np.testing.assert_allclose(y, np.asarray(weighted().operands[1].value).sum(1)[None], rtol=1e-4, atol=1e-5)


def test_export_of_another_file_is_an_error(call, folder):
    Path("text").write_text("nothing")
    said = call("export text -o small.onnx", exit_code=2).stderr
    assert said.startswith("Error: 'text' is not an nnadapter model")
    assert not Path("small.onnx").exists()


def test_output_may_not_overwrite_the_model(call, folder):
    save(weighted(), "small.model")
    contents = Path("small.model").read_bytes()
    said = call("export small.model -o ./small.model", exit_code=2).stderr
    assert "'./small.model' is the model itself; give the ONNX file another name" in said
    assert Path("small.model").read_bytes() == contents


def test_weights_of_large_models_get_their_own_file(folder):
    from nnadapter.exporting import to_onnx

    model = weighted()
    save_model(to_onnx(model), "large.onnx", largest=1000)
    assert Path("large.onnx.data").stat().st_size >= 160000
    (tensor,) = onnx.load("large.onnx").graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), model.operands[1].value)


def test_saved_segments_run_separately_in_onnxruntime(call, folder):
    onnx.save(parse(CHAIN), "chain.onnx")
    call("report chain.onnx -d fake_npu --option fake_npu.switched_off=Relu --fallback allow --save-segments parts")
    paths = sorted(Path("parts").iterdir())
    assert [path.name for path in paths] == ["segment_0_fake_npu.onnx", "segment_1_cpu.onnx", "segment_2_fake_npu.onnx"]
    x = np.array([[-1, 0, 1, 2]], np.float32)
    values = {"x": x}
    for path in paths:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs()]
        feeds = {each.name: values[each.name] for each in session.get_inputs()}
        values.update(zip(names, session.run(names, feeds), strict=True))
    for name, wanted in zip("ya", run_whole(parse(CHAIN), {"x": x}), strict=True):
        np.testing.assert_allclose(values[name], wanted, rtol=1e-6)


def test_saving_segments_requires_a_single_plan(call, folder):
    onnx.save(parse(CHAIN), "chain.onnx")
    assert (
        "--save-segments requires a single plan"
        in call("report chain.onnx --what-if --save-segments parts", exit_code=2).stderr
    )


def test_device_names_cannot_escape_the_segment_folder(call, folder):
    onnx.save(parse(CHAIN), "chain.onnx")
    call("report chain.onnx -d trial:/../../x --fallback allow --save-segments parts")
    assert {path.name for path in Path("parts").iterdir()} == {"segment_0_trial__.._.._x.onnx"}
