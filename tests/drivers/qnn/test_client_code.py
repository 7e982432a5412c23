from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter import ort
from tests.drivers.qnn.emulator import context
from tests.examples.reading import PICTURES, texts_of
from tests.models import HEAD, ocr_model, parse, run_whole

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MODEL = f"{HEAD} g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) {{ a = Sin(x) y = Add(a, x) }}"
PROVIDER = "QNNExecutionProvider"


def test_onnxruntime_ignores_a_registered_provider_name():
    """The driver therefore passes the provider's devices, not its name."""
    context()  # registers the library
    assert PROVIDER in onnxruntime.get_available_providers()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(parse(MODEL).SerializeToString(), options, providers=[PROVIDER])
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_provider_named_by_a_client_is_used():
    providers = [(PROVIDER, {"backend_type": "htp", "soc_model": "43"}), "CPUExecutionProvider"]
    session = ort.InferenceSession(parse(MODEL).SerializeToString(), providers=providers)
    x = np.linspace(-2, 2, 3 * 64, dtype=np.float32).reshape(1, 3, 8, 8)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.sin(x) + x, atol=5e-3)
    assert session.get_providers() == [PROVIDER, "CPUExecutionProvider"]
    assert session.report().coverage.nodes == 1
    session.close()


@pytest.mark.slow
def test_direction_classifier_runs_entirely_on_the_npu():
    model = ocr_model("cls")
    x = np.random.default_rng(7).random((1, 3, 48, 192), np.float32)
    with nna.InferenceSession(model, devices="qnn") as session:
        (result,) = session.run(None, {"x": x})
        assert session.report().coverage.nodes == 1 and len(session.report().segments) == 1
    (expected,) = run_whole(model, {"x": x})
    assert np.abs(result - expected).max() < 0.01


@pytest.mark.sweep
@pytest.mark.slow
def test_text_with_classifier_on_npu_and_other_models_on_fake_npu(monkeypatch):
    picture = [next(picture for picture in PICTURES if picture.stem == "lines_turned")]
    expected = texts_of(picture)
    opened = []

    class Session(ort.InferenceSession):
        def __init__(self, path, *arguments, **named):
            ort.use("qnn" if "cls" in str(path) else "fake_npu")
            super().__init__(path, *arguments, **named)
            opened.append(self)

    monkeypatch.setattr(ort, "InferenceSession", Session)
    ort.install()
    try:
        assert texts_of(picture) == expected
    finally:
        ort.uninstall()
        ort.use([])
    assert [session.get_providers()[0] for session in opened].count("qnn") == 1
    for session in opened:
        assert session.report().coverage.flops == 1 and not session.report().notes
        session.close()
