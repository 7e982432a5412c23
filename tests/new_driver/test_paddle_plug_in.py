"""A driver in C as a custom device of Paddle: the plug-in that is written, compiled once, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nnadapter.errors import DeviceNotFoundError, InvalidOptionError
from nnadapter.new_driver import write_driver, write_plug_in
from tests.c_compiler import acme_among_devices, compile_acme, compile_library, needs_compiler

needs_paddle = pytest.mark.skipif(find_spec("paddle") is None, reason="paddlepaddle is not installed")


@pytest.fixture(scope="module", params=[pytest.param("", marks=pytest.mark.sweep, id="optimized"), "-O0"])
def plug_in(tmp_path_factory, request):
    """The folder that the plug-in of acme_c was installed in; no driver lies beside it."""
    folder = tmp_path_factory.mktemp("plug_in")
    with acme_among_devices(folder):
        write_plug_in("acme_c", folder / "package")
    installed = folder / "installed"
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "-b", str(installed)]
    flags = {name: f"{os.environ.get(name, '')} {request.param}" for name in ("CFLAGS", "CXXFLAGS")}
    environment = {**os.environ, **flags}
    done = subprocess.run(command, cwd=folder / "package", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return installed


def _in_paddle(plug_in: Path, drivers: Path, *what: str, **variables: str) -> tuple[dict, str]:
    """What a function of in_paddle.py returns, and what the process wrote to standard error."""
    folders = {"CUSTOM_DEVICE_ROOT": str(plug_in / "paddle_custom_device"), "NNADAPTER_DRIVER_PATH": str(drivers)}
    environment = {**os.environ, **folders, **variables}
    script = Path(__file__).with_name("in_paddle.py")
    command = [sys.executable, "-W", "ignore", str(script), *what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def _not_right(cases: dict[str, list]) -> dict[str, list]:
    """The cases whose results are not the CPU's, or do not lie on the device."""
    return {name: each for name, each in cases.items() if each != [True, "Place(acme_c:0)"]}


@pytest.fixture(scope="module")
def definition(tmp_path_factory):
    """The folder of a driver that computes everything by the IR's definition."""
    folder = tmp_path_factory.mktemp("definition")
    compile_library(folder / "nnadapter_acme_c.so", Path(__file__).with_name("table.c"))
    return folder


@pytest.fixture(scope="module")
def on_acme(plug_in, tmp_path_factory):
    """What acme_c gives, and what was told meanwhile."""
    folder = tmp_path_factory.mktemp("acme")
    compile_acme(folder)
    return _in_paddle(plug_in, folder, "tutorial", "cases", "training", "threads", "no_room", "room_again", GLOG_v="1")


@needs_compiler
@needs_paddle
class TestInPaddle:
    def test_the_tutorial_prints_its_result(self, on_acme):
        said, told = on_acme
        assert said["tutorial"]["devices"] == ["acme_c"]
        head = "Tensor(shape=[1], dtype={}, place=Place(acme_c:0), stop_gradient=True,\n       [{}])"
        assert said["tutorial"]["x"] == head.format("int64", 1)
        assert said["tutorial"]["sum"] == head.format("int64", 2)
        assert said["tutorial"]["real"] == head.format("float32", "2.")
        assert "acme_c computes ADD of float32[1], float32[1]\n" in told
        assert "acme_c refuses ADD of int64[1], int64[1], which Paddle's CPU kernel computes: ADD got another" in told

    def test_results_are_the_cpus_and_lie_on_the_device(self, on_acme):
        said, told = on_acme
        assert _not_right(said["cases"]) == {}
        computed = {line.split()[2] for line in told.splitlines() if line.startswith("acme_c computes")}
        assert computed == {"ADD", "AVERAGE_POOL_2D", "CONV_2D", "MAT_MUL", "MAX_POOL_2D", "RELU"}

    def test_a_network_learns_on_it(self, on_acme):
        losses = on_acme[0]["training"]
        assert losses["acme_c"] == pytest.approx(losses["cpu"], rel=1e-5)
        assert losses["cpu"][2] < losses["cpu"][0]

    def test_threads_streams_and_memory(self, on_acme):
        found = on_acme[0]["threads"]
        assert found["wrong"] == []
        assert found["event"] is True
        assert found["second"] == ["Place(acme_c:1)", [1.0, 1.0]]
        assert found["allocated"] < 1 << 20
        assert found["bfloat16"] is False

    def test_a_device_without_room(self, on_acme):
        found = on_acme[0]["no_room"]
        assert found["raised"] == "MemoryError"
        assert "device 'acme_c:0', call 'allocate': 2147483648 bytes were asked for" in found["said"]

    def test_room_that_paddle_keeps_is_given_back(self, on_acme):
        assert on_acme[0]["room_again"]["shape"] == [1800, 1 << 17]

    def test_a_child_is_told_that_the_device_is_its_parents(self, plug_in, tmp_path):
        compile_acme(tmp_path)
        found = _in_paddle(plug_in, tmp_path, "fork")[0]["fork"]
        assert "device 'acme_c:0' was opened before this process was forked" in found["said"]
        assert found["status"] == 0
        assert found["parent"] == [4.0, 4.0]

    def test_a_library_that_is_not_there(self, plug_in, tmp_path):
        raised = _in_paddle(plug_in, tmp_path, "failures")[0]["failures"]
        assert raised["sum"][0] == "RuntimeError"
        assert "the driver of device 'acme_c' is not there, looked for" in raised["sum"][1]
        assert str(tmp_path / "nnadapter_acme_c.so") in raised["sum"][1]
        assert raised["device"][0] == "ValueError"

    def test_a_library_that_is_no_driver(self, plug_in, tmp_path):
        tmp_path.joinpath("nnadapter_acme_c.so").write_text("no library")
        raised = _in_paddle(plug_in, tmp_path, "failures")[0]["failures"]
        assert "the driver of device 'acme_c' cannot be loaded" in raised["sum"][1]

    @pytest.mark.parametrize(("phase", "why"), [("compile", "has no room for it"), ("compute", "is too hot")])
    def test_a_driver_that_fails(self, plug_in, definition, phase, why):
        raised = _in_paddle(plug_in, definition, "by_definition", "failures", FAILS=phase)[0]["failures"]
        assert raised["sum"][0] == "OSError"
        assert f"device 'acme_c:0', call '{phase}': the chip {why}" in raised["sum"][1]

    def test_operations_are_what_the_adapter_ir_says_that_they_are(self, plug_in, definition):
        found, told = _in_paddle(plug_in, definition, "by_definition", "cases")
        assert _not_right(found["cases"]) == {}, told
        asked = {line.split()[1] for line in told.splitlines() if line.startswith("asked ")}
        assert asked == {
            *("ABS", "ADD", "AVERAGE_POOL_2D", "CAST", "CEIL", "CLIP", "CONCAT", "CONV_2D", "COS", "DIV", "ELU"),
            *("EQUAL", "ERF", "EXP", "FLOOR", "GELU", "GREATER", "GREATER_EQUAL", "HARD_SWISH", "LEAKY_RELU", "LESS"),
            *("LESS_EQUAL", "LOG", "MAT_MUL", "MAX", "MAX_POOL_2D", "MIN", "MUL", "NOT_EQUAL", "POW", "RECIPROCAL"),
            *("REDUCE_MEAN", "REDUCE_SUM", "RELU", "RSQRT", "SIGMOID", "SIN", "SOFTMAX", "SOFTSIGN", "SQRT", "SQUARE"),
            *("SUB", "SWISH", "TANH", "TRANSPOSE"),
        }

    def test_a_driver_without_memory_and_streams(self, plug_in, tmp_path):
        write_driver("big_npu", tmp_path / "package", "c")
        compile_library(tmp_path / "nnadapter_acme_c.so", tmp_path / "package" / "csrc" / "driver.c", "-lm")
        found, told = _in_paddle(plug_in, tmp_path, "cases", GLOG_v="1")
        assert _not_right(found["cases"]) == {}
        assert "acme_c computes ADD of float32[6, 4], float32[6, 4]\n" in told


def test_the_plug_in_of_a_new_driver_lies_beside_it(tmp_path):
    written = write_driver("big_npu", tmp_path / "big_npu", "c", paddle=True)
    setup = (tmp_path / "big_npu" / "paddle" / "setup.py").read_text()
    assert '"big_npu/nnadapter_big_npu.so"' in setup
    assert tmp_path / "big_npu" / "paddle" / "csrc" / "nnadapter_driver.h" in written
    for path in written:
        assert path.suffix == ".onnx" or "$" not in path.read_text()


def test_paddle_loads_drivers_in_c_alone(tmp_path):
    with pytest.raises(InvalidOptionError, match="language is 'python'; add --lang c"):
        write_driver("big_npu", tmp_path / "big_npu", paddle=True)
    with pytest.raises(InvalidOptionError, match="driver 'fake_npu' is not in C"):
        write_plug_in("fake_npu", tmp_path / "plug_in")
    with pytest.raises(DeviceNotFoundError):
        write_plug_in("nothing", tmp_path / "plug_in")
    assert list(tmp_path.iterdir()) == []
