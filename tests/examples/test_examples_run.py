"""The example programs as users start them, without network access."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.c_compiler import COMPILER, compile_acme
from tests.optional import needs

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"
NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")


def start(program, *arguments):
    return subprocess.run(
        [sys.executable, EXAMPLES / program, *map(str, arguments)],
        env={**os.environ, **NOWHERE},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


@pytest.fixture
def acme_c(tmp_path, monkeypatch):
    """Compile the C example driver, and put it on the driver path."""
    if COMPILER is None:
        pytest.skip("there is no C compiler: none of cc, gcc and clang")
    monkeypatch.setenv("NNADAPTER_DRIVER_PATH", str(compile_acme(tmp_path, "-O3").parent))
    return "acme_c"


def classes(*arguments):
    done = start("classify.py", "--random-weights", "--input", "random", "--repeat", 1, *arguments)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^run avg time is \d+\.\d+ ms$", done.stdout, re.MULTILINE)
    found = re.findall(r"^(\d+) : (\S+)$", done.stdout, re.MULTILINE)
    assert [int(index) for index, _ in found] == list(range(0, 1000, 100))
    return [float(value) for _, value in found]


@pytest.mark.sweep
def test_classify_prints_the_results_of_onnxruntime():
    np.testing.assert_allclose(classes("-d", "fake_npu"), classes("-d", "cpu"), rtol=1e-3)


def test_classify_refuses_an_unknown_device():
    done = start("classify.py", "-d", "fake_npo")
    assert done.returncode == 1
    assert "fake_npu" in done.stderr


@pytest.mark.sweep
@needs("rapidocr")
def test_read_text_compares_with_onnxruntime(tmp_path):
    picture = EXAMPLES / "pictures" / "turned.png"
    done = start("read_text.py", picture, "--switch-off", "Erf,HardSigmoid,Resize", "--check", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("fake_npu is a reference in numpy, no accelerator")
    assert "A classifier finds that out" in done.stdout
    assert done.stdout.count("same text as ONNX Runtime: yes") == 1
    assert len(re.findall(r"^  segments .*; the fewest possible$", done.stdout, re.MULTILINE)) == 3
    assert len(re.findall(r"^  time .* ms, ONNX Runtime .* ms: .* times$", done.stdout, re.MULTILINE)) == 3
    with pytest.importorskip("PIL.Image").open(tmp_path / "turned.png") as drawn:
        assert drawn.size == (1280, 480)


@needs("rapidocr")
@pytest.mark.sweep
def test_read_text_agrees_on_the_c_driver(acme_c, tmp_path):
    picture = EXAMPLES / "pictures" / "turned.png"
    done = start("read_text.py", picture, "-d", acme_c, "--check", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "note" not in done.stdout and "is a reference" not in done.stdout
    assert done.stdout.count("same text as ONNX Runtime: yes") == 1
    coverage = [float(share) for share in re.findall(r"coverage .* ([\d.]+)% of FLOPs", done.stdout)]
    assert len(coverage) == 3 and min(coverage) > 80


def test_pictures_are_reproduced(tmp_path):
    done = start("pictures/make.py", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    shipped = {path.name: path for path in (EXAMPLES / "pictures").glob("*.png")}
    assert {path.name for path in tmp_path.iterdir()} == set(shipped) - {"bilingual.png"}
    assert all(path.stat().st_size < 150_000 for path in shipped.values())
    assert sum(path.stat().st_size for path in shipped.values()) < 600_000


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_build_by_hand_agrees_with_numpy(device):
    done = start("build_by_hand.py", "-d", device)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert float(re.search(r"largest difference to numpy (\S+)$", done.stdout, re.MULTILINE)[1]) < 1e-6
    assert len(re.findall(r"^\w+ +yes$", done.stdout, re.MULTILINE)) == 6
    kinds = re.findall(r"^    (\w+): \S", done.stdout, re.MULTILINE)
    assert kinds == ["InvalidModelError"] * 4 + ["NotDelegatedError", "InvalidInputError"]


@pytest.mark.parametrize("device", ["fake_npu", "cpu"])
def test_generate_agrees_with_onnxruntime_and_returns_its_cache(device):
    done = start("generate.py", "-d", device, "--tokens", 6, "--width", 32)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ONNX Runtime: \d+ tokens per second, 100% of the same letters$", done.stdout, re.MULTILINE)
    assert re.search(rf"^{device}: \d+ tokens per second, cache of 4096 bytes at the end$", done.stdout, re.MULTILINE)
    assert "past" not in done.stdout and "present" not in done.stdout


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("generate.py", ("--tokens", 1), "--tokens is 1, expected 2 to 2046 behind this prompt"),  # no step to time
        ("generate.py", ("--width", 30), "--width a multiple of 4"),
        ("paddle_ocr.py", ("--text", "12a"), "--text is '12a', expected digits from 0 to 9"),
    ],
)
def test_invalid_arguments_exit_with_2(program, arguments, said):
    done = start(program, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.fixture
def trained(monkeypatch, capsys):
    """Train on the digits and return the output, in this process: PyTorch's import is slow."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    torch._dynamo.reset()
    program = str(EXAMPLES / "train_digits.py")
    monkeypatch.syspath_prepend(EXAMPLES)
    for name, nowhere in NOWHERE.items():
        monkeypatch.setenv(name, nowhere)

    def train(*arguments):
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        runpy.run_path(program, run_name="__main__")
        return capsys.readouterr().out

    return train


@pytest.mark.sweep
@pytest.mark.filterwarnings("default")  # as for users
@pytest.mark.parametrize(("epochs", "read"), [(2, 0.85), pytest.param(6, 0.97, marks=pytest.mark.sweep)])
def test_digits_are_trained_and_read_on_a_device(trained, tmp_path, epochs, read):
    picture, saved = tmp_path / "training.png", tmp_path / "digits.onnx"
    told = trained("--epochs", epochs, "--compare", "--picture", picture, "--save", saved)
    taken = re.findall(r"^(forward|backward): 100.0% of FLOPs off the CPU$", told, re.MULTILINE)
    assert taken == ["forward", "backward"]
    assert float(re.search(r"^PyTorch by itself: .* at most (\S+) apart$", told, re.MULTILINE)[1]) < 1e-3
    assert float(re.search(r"never saw = (\S+)$", told, re.MULTILINE)[1]) >= read
    assert len(re.findall(r"^Epoch \d, Loss = \d\.\d{4}, Accuracy = \d\.\d{4}$", told, re.MULTILINE)) == epochs
    with pytest.importorskip("PIL.Image").open(picture) as drawn:
        assert len(drawn.getcolors(1 << 20)) > 20
    assert onnxruntime.InferenceSession(saved).get_inputs()[0].shape == ["batch", 1, 8, 8]


@pytest.mark.sweep
@pytest.mark.filterwarnings("default")
def test_digits_are_trained_partly_on_the_c_driver(trained, acme_c):
    told = trained("-d", acme_c, "--epochs", 1, "--compare")
    for graph in ("forward", "backward"):
        assert 0.3 < float(re.search(rf"^{graph}: (\S+)% of FLOPs off the CPU$", told, re.MULTILINE)[1]) / 100 < 1
    assert float(re.search(r"^PyTorch by itself: .* at most (\S+) apart$", told, re.MULTILINE)[1]) < 1e-3


@pytest.mark.sweep
@needs("paddle2onnx")
def test_paddle_ocr_reads_its_own_drawing():
    done = start("paddle_ocr.py", "--text", "31415926")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "fake_npu runs 100.0% of nodes, 100.0% of FLOPs",
        "read '31415926', was '31415926'",
    ]
