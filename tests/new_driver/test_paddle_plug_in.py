"""Driver in C as a custom device of Paddle, in child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnadapter.errors import DeviceNotFoundError, InvalidOptionError
from nnadapter.new_driver import write_driver, write_plug_in
from tests.c_compiler import acme_among_devices, compile_acme, compile_library, needs_compiler
from tests.optional import needs

LIBRARY = "nnadapter_acme_c.so"
RUNS = {
    "acme": ("acme", ["tutorial", "cases", "training", "threads", "no_room", "room_again"], {}),
    "fork": ("acme", ["fork"], {}),
    "none": ("none", ["failures"], {}),
    "broken": ("broken", ["failures"], {}),
    "compile": ("definition", ["by_definition", "failures"], {"FAILS": "compile"}),
    "compute": ("definition", ["by_definition", "failures"], {"FAILS": "compute"}),
    "definition": ("definition", ["by_definition", "cases"], {}),
    "template": ("template", ["cases"], {}),
}
"""A driver, functions of in_paddle.py, and environment variables."""


@pytest.fixture(scope="module", params=[pytest.param("", marks=pytest.mark.sweep, id="optimized"), "-O0"])
def plug_in(tmp_path_factory, request):
    """Return the folder with the installed plug-in; no driver is next to it."""
    folder = tmp_path_factory.mktemp("plug_in")
    with acme_among_devices(folder):
        write_plug_in("acme_c", folder / "package")
    installed = folder / "installed"
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "-b", str(installed)]
    flags = {name: f"{os.environ.get(name, '')} {request.param}" for name in ("CFLAGS", "CXXFLAGS")}
    environment = {**os.environ, **flags}
    completed = subprocess.run(command, cwd=folder / "package", env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    return installed


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    folders = {name: tmp_path_factory.mktemp("driver") for name in ("acme", "definition", "template", "none", "broken")}
    compile_acme(folders["acme"])
    # computes everything by definition
    compile_library(folders["definition"] / LIBRARY, Path(__file__).with_name("table.c"))
    write_driver("big_npu", folders["template"] / "package", "c")
    source = folders["template"] / "package" / "csrc" / "driver.c"
    compile_library(folders["template"] / LIBRARY, source, "-lm")
    (folders["broken"] / LIBRARY).write_text("no library")
    return folders


@pytest.fixture(scope="module")
def in_paddle(plug_in, drivers):
    """Return the results and standard error of each of `RUNS`.

    Paddle counts devices at import, with the driver it finds then: acme_c has two.
    """
    environment = {"CUSTOM_DEVICE_ROOT": str(plug_in / "paddle_custom_device"), "GLOG_v": "1"}
    results = {}
    for at_import in ("acme", "none"):
        runs = {name: run for name, run in RUNS.items() if (run[0] == "acme") is (at_import == "acme")}
        entries = [
            [{"NNADAPTER_DRIVER_PATH": str(drivers[driver]), **variables}, functions]
            for driver, functions, variables in runs.values()
        ]
        environment["NNADAPTER_DRIVER_PATH"] = str(drivers[at_import])
        results |= zip(runs, _in_paddle(environment, entries), strict=True)
    return results


def _in_paddle(environment: dict[str, str], entries: list) -> list:
    script = Path(__file__).with_name("in_paddle.py")
    command = [sys.executable, "-W", "ignore", str(script), json.dumps(entries)]
    environment = {**os.environ, **environment}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stderr
    outcomes = json.loads(completed.stdout.splitlines()[-1])
    assert [errors for result, errors in outcomes if result is None] == []
    return outcomes


def _not_right(cases: dict[str, list]) -> dict[str, list]:
    """Return cases with results that differ from the CPU's or are not on the device."""
    return {name: outcome for name, outcome in cases.items() if outcome != [True, "Place(acme_c:0)"]}


@pytest.mark.sweep
@needs_compiler
@needs("paddle")
class TestInPaddle:
    def test_tutorial_prints_the_documented_result(self, in_paddle):
        results, errors = in_paddle["acme"]
        assert results["tutorial"]["devices"] == ["acme_c"]
        head = "Tensor(shape=[1], dtype={}, place=Place(acme_c:0), stop_gradient=True,\n       [{}])"
        assert results["tutorial"]["x"] == head.format("int64", 1)
        assert results["tutorial"]["sum"] == head.format("int64", 2)
        assert results["tutorial"]["real"] == head.format("float32", "2.")
        assert "acme_c computes ADD of float32[1], float32[1]\n" in errors
        assert "acme_c refuses ADD of int64[1], int64[1], which Paddle's CPU kernel computes: ADD got another" in errors

    def test_results_equal_the_cpu_and_are_on_the_device(self, in_paddle):
        results, errors = in_paddle["acme"]
        assert _not_right(results["cases"]) == {}
        computed = {line.split()[2] for line in errors.splitlines() if line.startswith("acme_c computes")}
        assert computed == {"ADD", "AVERAGE_POOL_2D", "CONV_2D", "MAT_MUL", "MAX_POOL_2D", "RELU"}

    def test_network_trains_on_the_device(self, in_paddle):
        losses = in_paddle["acme"][0]["training"]
        assert losses["acme_c"] == pytest.approx(losses["cpu"], rel=1e-5)
        assert losses["cpu"][2] < losses["cpu"][0]

    def test_threads_streams_and_memory(self, in_paddle):
        result = in_paddle["acme"][0]["threads"]
        assert result["wrong"] == []
        assert result["event"] is True
        assert result["second"] == ["Place(acme_c:1)", [1.0, 1.0]]
        assert result["allocated"] < 1 << 20
        assert result["bfloat16"] is False

    def test_device_without_memory(self, in_paddle):
        result = in_paddle["acme"][0]["no_room"]
        assert result["raised"] == "MemoryError"
        assert "device 'acme_c:0', call 'allocate': 2147483648 bytes were asked for" in result["said"]

    def test_cached_memory_of_paddle_is_released(self, in_paddle):
        assert in_paddle["acme"][0]["room_again"]["shape"] == [1800, 1 << 17]

    def test_forked_child_gets_an_error(self, in_paddle):
        result = in_paddle["fork"][0]["fork"]
        assert "device 'acme_c:0' was opened before this process was forked" in result["said"]
        assert result["status"] == 0
        assert result["parent"] == [4.0, 4.0]

    def test_missing_library(self, in_paddle, drivers):
        raised = in_paddle["none"][0]["failures"]
        assert raised["sum"][0] == "RuntimeError"
        assert "the driver of device 'acme_c' is missing, searched" in raised["sum"][1]
        assert str(drivers["none"] / LIBRARY) in raised["sum"][1]
        assert raised["device"][0] == "ValueError"

    def test_library_without_a_driver(self, in_paddle):
        raised = in_paddle["broken"][0]["failures"]
        assert "the driver of device 'acme_c' cannot be loaded" in raised["sum"][1]

    @pytest.mark.parametrize(("phase", "reason"), [("compile", "has no room for it"), ("compute", "is too hot")])
    def test_failing_driver(self, in_paddle, phase, reason):
        raised = in_paddle[phase][0]["failures"]
        assert raised["sum"][0] == "OSError"
        assert f"device 'acme_c:0', call '{phase}': the chip {reason}" in raised["sum"][1]

    def test_operations_equal_the_definition(self, in_paddle):
        results, errors = in_paddle["definition"]
        assert _not_right(results["cases"]) == {}, errors
        queried = {line.split()[1] for line in errors.splitlines() if line.startswith("asked ")}
        assert queried == {
            *("ABS", "ADD", "AVERAGE_POOL_2D", "CAST", "CEIL", "CLIP", "CONCAT", "CONV_2D", "COS", "DIV", "ELU"),
            *("EQUAL", "ERF", "EXP", "FLOOR", "GELU", "GREATER", "GREATER_EQUAL", "HARD_SWISH", "LEAKY_RELU", "LESS"),
            *("LESS_EQUAL", "LOG", "MAT_MUL", "MAX", "MAX_POOL_2D", "MIN", "MUL", "NOT_EQUAL", "POW", "RECIPROCAL"),
            *("REDUCE_MEAN", "REDUCE_SUM", "RELU", "RSQRT", "SIGMOID", "SIN", "SOFTMAX", "SOFTSIGN", "SQRT", "SQUARE"),
            *("SUB", "SWISH", "TANH", "TRANSPOSE"),
        }

    def test_a_driver_without_memory_and_streams(self, in_paddle):
        results, errors = in_paddle["template"]
        assert _not_right(results["cases"]) == {}
        assert "acme_c computes ADD of float32[6, 4], float32[6, 4]\n" in errors


def test_plug_in_of_a_new_driver_refers_to_its_library(tmp_path):
    written = write_driver("big_npu", tmp_path / "big_npu", "c", paddle=True)
    setup = (tmp_path / "big_npu" / "paddle" / "setup.py").read_text()
    assert '"big_npu/nnadapter_big_npu.so"' in setup
    assert tmp_path / "big_npu" / "paddle" / "csrc" / "nnadapter_driver.h" in written
    for path in written:
        assert path.suffix == ".onnx" or "$" not in path.read_text()


def test_paddle_loads_only_c_drivers(tmp_path):
    with pytest.raises(InvalidOptionError, match="language is 'python'; add --lang c"):
        write_driver("big_npu", tmp_path / "big_npu", paddle=True)
    with pytest.raises(InvalidOptionError, match="driver 'fake_npu' is not in C"):
        write_plug_in("fake_npu", tmp_path / "plug_in")
    with pytest.raises(DeviceNotFoundError):
        write_plug_in("nothing", tmp_path / "plug_in")
    assert list(tmp_path.iterdir()) == []
