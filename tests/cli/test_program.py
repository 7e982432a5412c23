"""The program as a process: help, signals and progress."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import onnx
import pytest
from click.testing import CliRunner

import nnadapter as nna
from nnadapter.cli import main, partition_report
from nnadapter.cli import parameters as progress_module
from nnadapter.cli.command import report_errors
from tests.every import few_of
from tests.models import HEAD

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def process(*words, **settings):
    command = [sys.executable, "-m", "nnadapter", *words]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, **settings)


def test_run_prints_only_to_standard_output(folder):
    done = process("run", "chain.onnx", "-d", "fake_npu")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ran on    fake_npu: 1 segment" in done.stdout and "\x1b" not in done.stdout


def test_help_offers_compiled_files_except_for_compile_and_tune():
    helps = {
        name: " ".join(CliRunner().invoke(main, [name, "--help"]).stdout.split())
        for name in ("run", "compile", "report", "serve", "tune")
    }
    kind = "FILE.pt2), or SCRIPT.py:FUNCTION that returns a PyTorch module and its inputs."
    assert all(kind in text for text in helps.values())
    also = f"{kind} It can also be a compiled file."
    assert [name for name, text in helps.items() if also not in text] == ["compile", "tune"]


@pytest.mark.slow
def test_failure_is_one_line_on_stderr(folder):
    (folder / "bad.onnx").write_bytes(b"nothing of the kind")
    done = process("report", "bad.onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: model 'bad.onnx'") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_onnxruntime_prints_nothing(folder):
    onnx.save(onnx.parser.parse_model(f"{HEAD} g (float[2] x) => (float[2] y) {{ y = NoSuchOperation(x) }}"), "m.onnx")
    done = process("run", "m.onnx", "-d", "cpu")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_closed_pipe_causes_no_traceback(folder):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "nnadapter", "ops", "null", "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=120)
    os.close(writer)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "interrupted\n"),
        (signal.SIGTERM, 143, "terminated\n"),
        (signal.SIGHUP, 129, "terminal closed\n"),
    ],
)
def test_signal_stops_a_command(folder, number, code, said):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background of a shell ignores it
    os.mkfifo("x.npy")
    command = [sys.executable, "-m", "nnadapter", "run", "chain.onnx", "--input", "x=x.npy", "--save", "outputs"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    writer = os.open("x.npy", os.O_WRONLY)  # blocks until the child reads it
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    os.close(writer)
    assert (child.returncode, out, err) == (code, "", said)
    assert not Path("outputs").exists()


BUSY_PROCESS = """
import time
from nnadapter import __main__, cli
from nnadapter.process import terminal

def busy(prog_name):
    print("busy", flush=True)
    {body}

terminal.GRACE_S = {grace}
cli.main = busy
__main__.main()
"""
IN_CLEANUP = "\n    try: time.sleep(60)\n    finally: time.sleep(60)"
SWALLOWED = "\n    while True:\n        try: time.sleep(60)\n        except BaseException: pass"
IN_FINALIZER = (
    "\n    class Slow:\n        def __del__(self): time.sleep(0.5)\n    Slow()\n    time.sleep(60)"  # stays silent
)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("body", "grace", "signals", "code", "said"),
    [
        (SWALLOWED, 0.3, [signal.SIGTERM], 143, "terminated\n"),
        (IN_CLEANUP, 0.3, [signal.SIGTERM], 143, "terminated\n"),
        (IN_CLEANUP, 60, [signal.SIGTERM, signal.SIGINT], 130, ""),
        (IN_FINALIZER, 60, [signal.SIGTERM], 143, "terminated\n"),
    ],
)
@pytest.mark.usefixtures("interruptible")
def test_process_that_ignores_a_signal_is_ended(body, grace, signals, code, said):
    script = BUSY_PROCESS.format(body=body, grace=grace)
    command = [sys.executable, "-c", script]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert child.stdout.readline() == "busy\n"
    for number in signals:
        time.sleep(0.2)
        child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (code, "", said)


SIGNAL_IN_EXTENSION = """
import os, signal
from importlib.machinery import ExtensionFileLoader
from nnadapter import __main__, cli

def importing(prog_name):
    def exec_module(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100000):
            pass
        print("imported", flush=True)

    exec_module(ExtensionFileLoader("x", "x.so"))
    while True:
        signal.pause()

cli.main = importing
__main__.main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_signal_is_delayed_during_import_of_an_extension():
    """C++ modules abort if interrupted during import, jaxlib among them."""
    command = [sys.executable, "-c", SIGNAL_IN_EXTENSION]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (143, "imported\n", "terminated\n")


INTERRUPTED_IMPORT = """
import sys
from nnadapter.__main__ import {command}

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise {raised}

sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = {words}
{command}()
"""


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "ImportError('half') from KeyboardInterrupt()"])
@pytest.mark.parametrize(
    ("command", "module", "words"),
    [
        ("main", "nnadapter.cli", ["devices"]),
        ("main", "nnadapter.cli.devices", ["devices"]),
        ("partition_report", "nnadapter.cli.command", []),
    ],
)
def test_ctrl_c_during_import_is_reported(command, module, words, raised):
    code = INTERRUPTED_IMPORT.format(command=command, module=module, words=words, raised=raised)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_entry_points_handle_signals_before_heavy_imports():
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {
        "nnadapter": "nnadapter.__main__:main",
        "partition-report": "nnadapter.__main__:partition_report",
    }
    code = "import sys; before = set(sys.modules); import nnadapter.__main__; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert "click" not in done.stdout and "nnadapter.cli" not in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that takes nothing")
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        ("ops fake_npu", ""),
        ("--version", "1"),
        *(
            pytest.param(words, unbuffered, marks=pytest.mark.sweep)
            for words in ("report chain.onnx -d fake_npu", "ops fake_npu", "--help", "--version")
            for unbuffered in ("", "1")
        ),
    ],
)
def test_full_disk_for_output_is_one_line(folder, monkeypatch, words, unbuffered):
    monkeypatch.setitem(ENVIRONMENT, "PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "nnadapter", *words.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=120)
    said = "Error: standard output cannot be written: No space left on device; redirect it elsewhere\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="streams are closed by a shell")
@pytest.mark.parametrize(
    ("words", "closed"),
    [
        *(("report chain.onnx -d fake_npu", closed) for closed in (">&- 2>&-", "2>&-")),
        *(
            pytest.param(words, closed, marks=pytest.mark.sweep)
            for words in ("report chain.onnx -d fake_npu", "run sandwich.onnx -d fake_npu", "doctor")
            for closed in (">&- 2>&-", ">&-", "2>&-")
        ),
    ],
)
def test_closed_streams_do_not_fail_a_command(folder, words, closed):
    command = f"{sys.executable} -m nnadapter {words} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0 and "Traceback" not in done.stderr and bool(done.stdout) == (closed == "2>&-")


def test_version_and_help():
    runner = CliRunner()
    assert runner.invoke(main, ["--version"]).stdout == f"nnadapter {nna.__version__}\n"
    out = runner.invoke(main, ["--help"]).stdout
    assert "Exit codes: 0 success, 1 negative result, 2 wrong usage or input." in out
    assert [line.split()[0] for line in out.split("Commands:")[1].splitlines() if line] == main.list_commands(None)
    assert runner.invoke(main, ["reprot"]).exit_code == 2
    assert "Usage: partition-report" in runner.invoke(partition_report, ["-h"], prog_name="partition-report").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("reprot chain.onnx", "there is no command 'reprot'; did you mean 'report' or 'export'?"),
        ("xyzzy", "there is no command 'xyzzy'; known: bench, cache, calibrate, "),
        ("report chain.onnx --format htlm", "'htlm' is not one of text, json, md, html, dot, model-explorer; did you"),
        ("report chain.onnx --policy latencey", "measured; did you mean 'latency'?"),
        ("report chain.onnx --fallback zzz", "'zzz' is not one of warn, allow, forbid"),
        ("report chain.onnx -d fakenpu", "did you mean 'fake_npu'?"),
        ("report chain.onnx -d fake_npu --option fake_npu.thread=1", "did you mean 'threads'"),
        ("report chain.onnx -d fake_npu --option fake_npu.precision=float61", "got 'float61'; did you mean 'float16'"),
    ],
)  # fmt: skip
def test_unknown_words_have_suggestions(call, words, said):
    assert said in " ".join(call(words, 2).stderr.split())


@pytest.mark.parametrize("command", ["devices", "ops", "report", "run", "compare"])
def test_every_command_has_help(command):
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0 and result.stdout.startswith(f"Usage: nnadapter {command}")


def test_version_imports_no_heavy_package():
    code = (
        "import sys; from nnadapter.cli import main; main(['--version'], standalone_mode=False); "
        "print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 0
    assert not [name for name in ("onnx", "onnxruntime", "rich") if f"'{name}'" in done.stdout]


def test_other_errors_are_not_hidden():
    with pytest.raises(ZeroDivisionError), report_errors():
        raise ZeroDivisionError
    with pytest.raises(click.ClickException, match="not enough memory"), report_errors():
        raise MemoryError("8 TiB")


class Display:
    def __init__(self):
        self.calls, self.started = [], threading.Event()

    def start(self):
        self.calls.append("start")
        self.started.set()

    def stop(self):
        self.calls.append("stop")


@pytest.mark.parametrize(("patience", "expected"), [(0.01, ["start", "stop"]), (60.0, [])])
def test_progress_appears_after_a_delay(monkeypatch, patience, expected):
    monkeypatch.setattr(progress_module, "PATIENCE_S", patience)
    display = Display()
    with progress_module.delayed_display(display):
        assert not expected or display.started.wait(60)
    assert display.calls == expected


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_only_on_a_terminal(monkeypatch, capsys, terminal):
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_module.progress("running", 2) as advance:
        shown = [capsys.readouterr()]
        while terminal and "running" not in "".join(each.err for each in shown):
            time.sleep(0.01)
            shown.append(capsys.readouterr())
        advance()
    shown.append(capsys.readouterr())
    assert any(each.err for each in shown) == terminal and not any(each.out for each in shown)


def everything(descriptor):
    """Read from a terminal until its other side is closed."""
    read = b""
    while True:
        try:
            more = os.read(descriptor, 1 << 16)
        except OSError:  # Linux raises when the other side is closed; other systems return nothing
            return read
        if not more:
            return read
        read += more


@pytest.mark.sweep
@pytest.mark.parametrize("command", few_of(("report", "run", "compare"), "run"))
def test_progress_does_not_mix_with_results(folder, command):
    """The progress bar temporarily replaces the standard streams."""
    pty = pytest.importorskip("pty", reason="terminals are simulated with pseudo-terminals, which Windows has not")
    code = (
        "import nnadapter.cli.parameters as progress; progress.PATIENCE_S = 0.0; from nnadapter.cli import main; "
        f"main(['{command}', 'chain.onnx', '-d', 'fake_npu'], standalone_mode=False)"
    )
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as reader:
        terminal = reader.submit(everything, ours)  # read concurrently: an unread terminal fills up
        try:
            done = subprocess.run(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, text=True, env=ENVIRONMENT
            )
        finally:
            os.close(theirs)
        shown = terminal.result(60).decode()
    os.close(ours)
    assert done.returncode == 0 and "fake_npu" in done.stdout and "\x1b" not in done.stdout
    assert "fake_npu" not in shown and "\x1b" in shown
