"""What a session tells a log, and that it tells nothing where nobody reads one."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import nnadapter as nna
from nnadapter.errors import InvalidOptionError
from nnadapter.traces.asking import trace_for
from nnadapter.traces.event import COMPILE, RUN
from nnadapter.traces.logged import Logged
from nnadapter.traces.trace import SILENT
from tests.models import CHAIN, numbers, parse


def told(device, caplog, level):
    with (
        caplog.at_level(level, "nnadapter"),
        nna.InferenceSession(parse(CHAIN), devices=device, options={"fallback": "allow"}) as session,
    ):
        for _ in range(2):
            session.run(None, {"x": numbers(2, 3)})
    return [(record.levelname, record.name, record.getMessage()) for record in caplog.records]


def test_what_devices_compile(caplog):
    ((level, logger, message),) = told("fake_npu", caplog, logging.INFO)
    assert (level, logger) == ("INFO", "nnadapter.compile")
    assert message.startswith("fake_npu: compile segment 0: ") and message.endswith("node_count: 4)")


def test_what_is_done_before(caplog):
    lines = told("fake_npu", caplog, logging.DEBUG)
    assert {logger for _, logger, _ in lines} == {"nnadapter.plan", "nnadapter.compile"}
    assert any(message.startswith("session: judge: ") for _, _, message in lines)


def test_every_fallback(caplog):
    """A warning comes once; a log has each of them."""
    lines = [line for line in told(("trial", {"fault": "compute"}), caplog, logging.INFO) if line[0] == "WARNING"]
    assert [logger for _, logger, _ in lines] == ["nnadapter.fallback"] * 2
    assert "the device hung up" in lines[0][2] and "it runs on the CPU instead" in lines[0][2]


def test_nothing_is_told_where_nobody_reads(caplog):
    assert trace_for(None, None) is SILENT
    assert not told("fake_npu", caplog, logging.WARNING)


def test_runs_are_not_told(caplog):
    with caplog.at_level(logging.DEBUG, "nnadapter"):
        with Logged().span("npu", RUN, "run"):
            pass
        with pytest.raises(ValueError, match="no"), Logged().span("npu", COMPILE, "bind"):
            raise ValueError("no")
    (record,) = caplog.records
    assert record.getMessage().startswith("npu: bind: ") and record.getMessage().endswith(", failed: ValueError: no")


def test_an_unknown_level(monkeypatch):
    monkeypatch.setenv("NNADAPTER_LOG", "inof")
    with pytest.raises(InvalidOptionError, match="NNADAPTER_LOG is 'inof', expected .*; did you mean 'info'"):
        nna.InferenceSession(parse(CHAIN), devices="fake_npu")


def test_the_environment_asks_for_lines_on_standard_error():
    code = (
        "from nnadapter.traces.asking import trace_for\n"
        "for _ in range(2): trace_for(None, None).mark('npu', 'fallback', 'fall back', reason='hung up')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"NNADAPTER_LOG": "Warning"}, capture_output=True, text=True, check=True
    )
    lines = ran.stderr.splitlines()
    assert len(lines) == 2 and not ran.stdout
    assert lines[0].endswith("WARNING nnadapter.fallback: npu: fall back (reason: hung up)")
