"""Events that a recorder keeps, and their file format."""

from __future__ import annotations

import json
import os
import threading

import pytest

from nnadapter.drivers import Trace
from nnadapter.errors import InvalidOptionError
from nnadapter.traces import COMPILE, RUN, SILENT, STEP, Recorder
from tests.trace_checks import lanes_of, named


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path / "trace.json")


def test_span_is_an_event_with_facts(recorder, tmp_path):
    with recorder.span("npu", COMPILE, "compile", segment=3) as facts:
        facts["bytes"] = 7
    with pytest.raises(ValueError, match="no"), recorder.span("npu", COMPILE, "bind"):
        raise ValueError("no")
    recorder.mark("npu", STEP, "gave up")
    assert recorder.finish() == str(tmp_path / "trace.json")
    compiled, bound, mark = lanes_of(tmp_path / "trace.json")["npu"]
    assert compiled["args"] == {"segment": 3, "bytes": 7} and compiled["cat"] == COMPILE
    assert bound["args"] == {"error": "ValueError: no"} and mark["ph"] == "i"


def test_transfer_with_bytes_is_in_its_target_lane(recorder, tmp_path):
    recorder.transfer("cpu", "npu", 4096, recorder.timestamp(), values=["x"])
    recorder.finish()
    (event,) = lanes_of(tmp_path / "trace.json")["npu"]
    assert (event["name"], event["cat"], event["args"]) == ("cpu to npu", "transfer", {"bytes": 4096, "values": ["x"]})


def test_events_beyond_the_limit_are_counted(tmp_path):
    recorder = Recorder(tmp_path / "trace.json", limit=10)
    for _ in range(25):
        recorder.add("npu", STEP, "step", recorder.timestamp(), {})
    recorder.mark("npu", COMPILE, "what is rare is kept all the same")
    recorder.finish()
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["dropped_events"] == 15
    events = lanes_of(tmp_path / "trace.json")["npu"]
    assert len(named(events, "step")) == 10 and len(named(events, "what is rare")) == 1


def test_unreserved_engine_events_are_counted(tmp_path):
    recorder = Recorder(tmp_path / "trace.json")
    lost = sum(not recorder.reserve_events(1_000) for _ in range(60)) * 1_000
    recorder.finish()
    assert lost == 10_000
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["dropped_events"] == lost


def test_trace_is_written_once(recorder, tmp_path):
    recorder.mark("npu", RUN, "before")
    assert recorder.finish()
    recorder.mark("npu", RUN, "after")
    assert recorder.finish() == ""
    assert [event["name"] for event in lanes_of(tmp_path / "trace.json")["npu"]] == ["before"]


def test_values_unknown_to_json_are_written_as_text(recorder, tmp_path):
    recorder.mark("npu", RUN, "odd \ud800", number=float("nan"), path=tmp_path)
    recorder.finish()
    (event,) = lanes_of(tmp_path / "trace.json")["npu"]
    assert event["args"] == {"number": "nan", "path": str(tmp_path)}


def test_unwritable_file_is_an_error(tmp_path):
    recorder = Recorder(tmp_path / "gone" / "trace.json")
    with pytest.raises(InvalidOptionError, match=r"^trace '.*trace\.json' cannot be written: No such file .*; give"):
        recorder.finish()


def test_failed_write_leaves_the_old_file(tmp_path):
    (tmp_path / "trace.json").write_text("of before")
    recorder = Recorder(tmp_path / "trace.json")
    recorder.mark("npu", RUN, "what cannot be written", a=Unwritable())
    with pytest.raises(RuntimeError, match="not this"):
        recorder.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    assert (tmp_path / "trace.json").read_text() == "of before"


class Unwritable:
    def __str__(self):
        raise RuntimeError("not this")


def test_temporary_folders_are_removed(tmp_path):
    kept, lost = Recorder(tmp_path / "kept.json"), Recorder(tmp_path / "lost.json")
    folders = [kept.folder(), lost.folder()]
    assert kept.folder() == folders[0] and all(map(os.path.isdir, folders))
    kept.finish()
    del lost
    assert not any(map(os.path.isdir, folders))


def test_forked_process_does_not_write_the_trace(recorder, tmp_path):
    recorder.mark("npu", RUN, "run")
    child = os.fork()
    if child == 0:
        recorder.finish()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and not (tmp_path / "trace.json").exists()
    assert recorder.finish()


def test_concurrent_threads_lose_no_events(recorder, tmp_path):
    start = threading.Barrier(4)

    def work():
        start.wait(60)
        for _ in range(500):
            with recorder.span("npu", STEP, "step"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    recorder.finish()
    assert sum(map(len, lanes_of(tmp_path / "trace.json").values())) == 2_000


def test_silent_trace_accepts_events_and_records_nothing():
    with SILENT.span("npu", RUN, "run", a=1) as facts:
        facts["b"] = 2
    assert SILENT.timestamp() == 0 and not SILENT.is_recording
    SILENT.add("npu", RUN, "run", 0, {})
    SILENT.mark("npu", RUN, "run")
    SILENT.transfer("npu", "cpu", 1, 0)


def test_recorder_has_every_method_of_trace():
    taken = {name for name in vars(Trace) if not name.startswith("_")}
    assert taken <= vars(Recorder).keys()
