"""Log messages of a session, and no work if nothing listens."""

from __future__ import annotations

import logging
import subprocess
import sys
from io import StringIO
from threading import Barrier, Thread

import pytest

import nnadapter as nna
from nnadapter.errors import InvalidOptionError
from nnadapter.traces import COMPILE, FALLBACK, RUN, SILENT, VARIABLE, LogTrace, is_enabled, trace_for
from tests.models import CHAIN, numbers, parse


@pytest.fixture
def program(monkeypatch, capsys):
    """Reset loggers to the state of a fresh program; return a function that reads standard error."""
    for name in ("nnadapter", None):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "level", logger.level)
    logging.Logger.manager._clear_cache()
    yield lambda: capsys.readouterr().err.splitlines()
    monkeypatch.undo()
    logging.Logger.manager._clear_cache()


def tell(level, monkeypatch, text="fall back"):
    monkeypatch.setenv("NNADAPTER_LOG", level)
    trace_for(None, None).mark("npu", FALLBACK, text)


class Kept(logging.Handler):
    """Handler that collects nnadapter's log records from a level on."""

    def __init__(self, level):
        super().__init__()
        self.records, self.wanted, self.logger = [], level, logging.getLogger("nnadapter")
        self.emit = self.records.append

    def __enter__(self):
        self.before = self.logger.level
        self.logger.addHandler(self)
        self.logger.setLevel(self.wanted)
        return self.records

    def __exit__(self, *_):
        self.logger.removeHandler(self)
        self.logger.setLevel(self.before)


def told(device, level):
    with (
        Kept(level) as records,
        nna.InferenceSession(parse(CHAIN), devices=device, options={"fallback": "allow"}) as session,
    ):
        for _ in range(2):
            session.run(None, {"x": numbers(2, 3)})
    return [(record.levelname, record.name, record.getMessage()) for record in records]


def test_compilation_is_logged_at_info():
    ((level, logger, message),) = told("fake_npu", logging.INFO)
    assert (level, logger) == ("INFO", "nnadapter.compile")
    assert message.startswith("fake_npu: compile segment 0: ") and message.endswith("node_count: 4)")


def test_planning_is_logged_at_debug():
    lines = told("fake_npu", logging.DEBUG)
    assert {logger for _, logger, _ in lines} == {"nnadapter.plan", "nnadapter.compile"}
    assert any(message.startswith("session: judge: ") for _, _, message in lines)


def test_every_fallback_is_logged():
    """Warnings appear once, log records each time."""
    lines = [line for line in told(("trial", {"fault": "compute"}), logging.INFO) if line[0] == "WARNING"]
    assert [logger for _, logger, _ in lines] == ["nnadapter.fallback"] * 2
    assert "the device hung up" in lines[0][2] and "it runs on the CPU instead" in lines[0][2]


def test_nothing_is_logged_without_a_handler():
    assert trace_for(None, None) is SILENT
    assert not told("fake_npu", logging.WARNING)


def test_runs_are_not_logged():
    with Kept(logging.DEBUG) as records:
        with LogTrace().span("npu", RUN, "run"):
            pass
        with pytest.raises(ValueError, match="no"), LogTrace().span("npu", COMPILE, "bind"):
            raise ValueError("no")
    (record,) = records
    assert record.getMessage().startswith("npu: bind: ") and record.getMessage().endswith(", failed: ValueError: no")


def test_unknown_level_is_an_error(monkeypatch):
    monkeypatch.setenv("NNADAPTER_LOG", "inof")
    with pytest.raises(InvalidOptionError, match="NNADAPTER_LOG is 'inof', expected .*; did you mean 'info'"):
        nna.InferenceSession(parse(CHAIN), devices="fake_npu")


def test_environment_variable_enables_logging_to_stderr():
    code = (
        "from nnadapter.traces.selection import trace_for\n"
        "for _ in range(2): trace_for(None, None).mark('npu', 'fallback', 'fall back', reason='hung up')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"NNADAPTER_LOG": "Warning"}, capture_output=True, text=True, check=True
    )
    lines = ran.stderr.splitlines()
    assert len(lines) == 2 and not ran.stdout
    assert lines[0].endswith("WARNING nnadapter.fallback: npu: fall back (reason: hung up)")


def test_changed_level_duplicates_no_line(program, monkeypatch):
    for level in ("info", "debug", "info", "error"):
        tell(level, monkeypatch)
    assert len(program()) == 3


def test_concurrent_sessions_duplicate_no_line(program, monkeypatch):
    monkeypatch.setenv("NNADAPTER_LOG", "info")
    usual, barrier = sys.getswitchinterval(), Barrier(8)
    threads = [Thread(target=lambda: (barrier.wait(), trace_for(None, None))) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    tell("info", monkeypatch)
    assert len(program()) == 1


def test_logging_configuration_of_the_program_is_preserved(program, monkeypatch):
    of_program, file = logging.getLogger(), StringIO()
    of_program.addHandler(logging.StreamHandler(file))
    of_program.setLevel(logging.DEBUG)
    tell("error", monkeypatch)
    assert file.getvalue() == "npu: fall back\n" and not program()
    tell("warning", monkeypatch)
    assert len(file.getvalue().splitlines()) == 2 and len(program()) == 1
    of_program.addHandler(logging.StreamHandler(sys.stderr))
    tell("warning", monkeypatch)
    assert program() == ["npu: fall back"]


def test_line_breaks_in_names_are_escaped(program, monkeypatch):
    tell("warning", monkeypatch, "node\nWARNING nnadapter.fallback: another\x1b[2J")
    (line,) = program()
    assert line.endswith(r"npu: node\nWARNING nnadapter.fallback: another\x1b[2J")


def test_closed_standard_error_does_not_fail(program, monkeypatch):
    closed = StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    tell("warning", monkeypatch)
    monkeypatch.setattr(sys, "stderr", None)
    tell("warning", monkeypatch)


class NoFlush:
    def __init__(self):
        self.lines = []

    def write(self, text):
        self.lines.append(text)


def test_standard_error_without_flush_does_not_fail(program, monkeypatch):
    stream = NoFlush()
    monkeypatch.setenv(VARIABLE, "info")
    monkeypatch.setattr(sys, "stderr", stream)
    assert is_enabled()
    logging.getLogger("nnadapter.compile").info("compiled")
    assert "compiled" in stream.lines[0]


def test_unset_variable_disables_logging(program, monkeypatch):
    level = logging.getLogger("nnadapter").level
    monkeypatch.setenv(VARIABLE, "info")
    assert is_enabled()
    monkeypatch.delenv(VARIABLE)
    assert not is_enabled()
    assert logging.getLogger("nnadapter").level == level
