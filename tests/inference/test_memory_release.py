"""Memory of closed sessions: freed at once, without reference cycles that wait for the collector."""

from __future__ import annotations

import gc

import pytest

import nnadapter as nna
from benchmarks.models.language_models import CHOOSES, Sizes, first_feed, language_model, merged_decoder
from nnadapter.drivers import Execution, Program
from nnadapter.engine import Compiled
from nnadapter.ir.structure import SpecializableModel
from nnadapter.onnx.preparation import Prepared
from tests.c_compiler import acme_among_devices, needs_compiler
from tests.models import HEAD, numbers, parse

SIZES = Sizes(layers=1, width=16, heads=2, words=20)
PROMPTS = ((1, 2, 3), (1, 2), (4, 3, 2, 1))
CHAIN = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ a = Exp (x) b = Softmax (a) y = Neg (b) }}"


def decode(session, **others):
    for prompt in PROMPTS:
        session.run(None, {**first_feed(SIZES, prompt), **others})


def plain(device, folder):
    decode(nna.InferenceSession(language_model(SIZES), devices=device))


def closed(device, folder):
    with nna.InferenceSession(language_model(SIZES), devices=device) as session:
        decode(session)
        session.report()


def choosing(device, folder):
    decode(nna.InferenceSession(merged_decoder(SIZES), devices=device), **{CHOOSES: numbers(1).astype(bool)})


def kept(device, folder):
    decode(nna.InferenceSession(language_model(SIZES), devices=device, options=nna.Options(cache_dir=folder)))


def checked(device, folder):
    decode(nna.InferenceSession(language_model(SIZES), devices=device, options=nna.Options(verify="once")))


def of_a_file(device, folder):
    path = folder / "model.nna"
    if not path.exists():
        nna.compile(language_model(SIZES), path, devices=device)
    decode(nna.InferenceSession(path))


def isolated(device, folder):
    decode(nna.InferenceSession(language_model(SIZES), devices=device, options=nna.Options(isolate=True)))


def of_two_devices(device, folder):
    devices = [("fake_npu", {"switched_off": ("SOFTMAX",)}), device] if device != "fake_npu" else [device, "null"]
    session = nna.InferenceSession(parse(CHAIN), devices=devices)
    for rows in (1, 2, 3):
        session.run(None, {"x": numbers(rows, 4)})


USES = [plain, closed, choosing, kept, checked, of_a_file, isolated, of_two_devices]
DEVICES = ["null", "fake_npu", "openvino"]


def check_freed(use, device, folder):
    use(device, folder)  # process-wide objects exist after the first use
    gc.collect()
    gc.disable()
    try:
        before = held()
        use(device, folder)
        assert held() == before
    finally:
        gc.enable()


@needs_compiler
def test_c_driver_objects_are_freed_without_garbage_collection(tmp_path):
    with acme_among_devices(tmp_path) as device:
        check_freed(plain, device, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "device"),
    [(use, device) for use in USES for device in DEVICES if (use, device) != (checked, "null")],  # its zeros are wrong
)
def test_sessions_are_freed_without_garbage_collection(use, device, tmp_path):
    check_freed(use, device, tmp_path)


KINDS = (Prepared, Compiled, SpecializableModel, Program, Execution)


def held() -> list[str]:
    """Return the type names of all models, plans and programs in the process."""
    return sorted(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), KINDS))
