"""Repair of a segment that fails to compile: faulty nodes move and are banned, the others stay."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import nnadapter as nna
from nnadapter.cli import main
from nnadapter.drivers import DeviceTensor, Memory
from nnadapter.drivers.tensor_copies import bind_to_owner
from nnadapter.errors import (
    CompilationError,
    DeviceLostError,
    FallbackWarning,
    NotDelegatedError,
    OutOfMemoryError,
    TransientError,
)
from nnadapter.store import bans
from tests.models import HEAD, numbers, parse, run_whole
from tests.trial_driver import COMPILES, COUNTS

LONG = f"""{HEAD} long (float[2, 3] x) => (float[2, 3] y) {{
    a = Relu(x)  b = Neg(a)  c = Exp(b)  d = Tanh(c)  e = Neg(d)  f = Sigmoid(e)  g = Abs(f)  y = Add(g, a)
}}"""
X = {"x": numbers(2, 3)}


@pytest.fixture(autouse=True)
def _the_driver_stays_as_it_is(monkeypatch):
    """Replace the driver's digest, which covers all Python files in its folder and changes with edits."""
    monkeypatch.setattr("nnadapter.store.keys._digest_of_driver", lambda device: "the same")


def made(options, cache=False, fallback="allow"):
    with nna.InferenceSession(
        parse(LONG), devices=("trial", options), options=nna.Options(fallback=fallback, cache_dir=cache)
    ) as session:
        np.testing.assert_allclose(session.run(None, X)[0], run_whole(parse(LONG), X)[0], rtol=1e-6)
        return session.report()


def elsewhere(report):
    return sorted(node.op_type for node in report.nodes if node.device != "trial")


def reasons(report):
    return {(refusal.reason, node.op_type) for node in report.nodes for refusal in node.refusals}


@pytest.mark.parametrize("culprit", ["EXP", "RELU", "ADD"])
def test_only_the_failing_node_leaves_the_device(culprit):
    report = made({"fails_on": culprit})
    assert elsewhere(report) == [culprit.capitalize()]
    assert report.incidents[0].stage == "compile" and report.incidents[0].kind == "RuntimeError"


def test_all_nodes_of_a_failing_form_are_moved():
    report = made({"fails_on": "NEG"})
    assert elsewhere(report) == ["Neg", "Neg"]


def test_one_of_two_incompatible_nodes_is_moved():
    report = made({"beside": ["EXP", "SIGMOID"]})
    assert elsewhere(report) in (["Exp"], ["Sigmoid"])


def test_oversized_segment_is_split_on_the_same_device():
    report = made({"room": 4})
    assert elsewhere(report) == [] and len(report.segments) == 2


def test_segment_leaves_a_device_that_compiles_nothing():
    assert len(elsewhere(made({"fault": "compile"}))) == 8


def test_compile_failure_warns_once_or_raises_compilation_error():
    with pytest.warns(FallbackWarning, match="failed to compile") as caught:
        made({"fails_on": "EXP"}, fallback="warn")
    assert len(caught) == 1
    with pytest.raises(CompilationError) as raised:
        made({"fails_on": "EXP"}, fallback={"compile": "forbid"})
    error = raised.value
    assert (error.device, error.segment, len(error.nodes), error.phase) == ("trial", 0, 8, "compile")


def test_transient_compile_failure_is_retried():
    COMPILES.append(TransientError("busy"))
    report = made({}, fallback="forbid")
    assert elsewhere(report) == [] and COMPILES == []
    assert [(each.kind, each.fallback_action[:15]) for each in report.incidents] == [
        ("TransientError", "it was repeated")
    ]
    COMPILES.extend([TransientError("busy"), KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        made({})
    assert elsewhere(made({})) == []


def test_out_of_memory_node_is_retried_once():
    COMPILES.extend([OutOfMemoryError("full")] * 3)
    model = parse(f"{HEAD} g (float[2, 3] x) => (float[2, 3] y) {{ y = Relu(x) }}")
    with nna.InferenceSession(model, devices="trial", options=nna.Options(fallback="allow")) as session:
        assert [step.device for step in session.report().segments] == ["cpu"]
    assert len(COMPILES) == 2
    COMPILES.clear()


ROWS = f"{HEAD} g (float[N, 3] x) => (float[N, 3] y) {{ y = Relu(x) }}"


def devices_at(session, rows):
    session.run(None, {"x": numbers(rows, 3)})
    return [step.device for step in session.provenance.steps]


def test_unused_plans_are_evicted_if_memory_is_full():
    with nna.InferenceSession(parse(ROWS), devices="trial", options=nna.Options(fallback="forbid")) as session:
        for rows in (1, 2, 3):
            assert devices_at(session, rows) == ["trial"]
        COMPILES.extend([OutOfMemoryError("full")] * 2)
        closed = COUNTS.get("closed", 0)
        assert devices_at(session, 4) == ["trial"] and not COMPILES
        assert COUNTS["closed"] - closed == 2 and session.report().plans.in_cache == 2
        assert devices_at(session, 1) == ["trial"] and not session.report().incidents
        COMPILES.extend([OutOfMemoryError("full")] * 5)
        with pytest.raises(OutOfMemoryError, match="full"):
            devices_at(session, 5)
        assert COMPILES == []


@pytest.mark.parametrize(
    ("options", "failures", "words"),
    [
        ({"fails_on": "EXP"}, [], "7 of these 8 nodes stay, the others go to 'cpu'"),
        ({"room": 4}, [], "these nodes stay on 'trial', cut into 2 segments"),
        ({}, [DeviceLostError("the threads are not there")], "these nodes go to 'cpu'"),
    ],
)
def test_warning_names_new_placement_of_a_failed_segment(options, failures, words):
    COMPILES.extend(failures)
    with pytest.warns(FallbackWarning, match=words):
        report = made(options, fallback="warn")
    assert all(words in each.fallback_action for each in report.incidents[:1])


class _Memory(Memory):
    nbytes = 4
    freed = False

    def copy_in(self, array):
        raise AssertionError

    copy_out = copy_in

    def free(self):
        self.freed = True


def test_orphaned_tensors_are_freed_before_compilation():
    memory = _Memory()
    bind_to_owner(DeviceTensor(memory, np.dtype(np.float32), (1,)))
    assert not memory.freed
    with nna.InferenceSession(parse(LONG), devices="trial"):
        assert memory.freed


def test_interrupted_search_leaves_sessions_usable():
    COMPILES.extend([RuntimeError("no"), RuntimeError("no"), None, KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        made({})
    assert elsewhere(made({})) == []


def test_failing_verdict_is_a_load_incident():
    report = made({"fault": "admit"})
    assert [(each.stage, each.device, len(each.nodes)) for each in report.incidents] == [("load", "trial", 8)]
    with pytest.raises(NotDelegatedError) as raised:
        made({"fault": "supported"}, fallback={"load": "forbid"})
    assert (raised.value.device, raised.value.phase, len(raised.value.nodes)) == ("trial", "judge", 8)


def test_next_session_skips_banned_nodes(tmp_path):
    made({"fails_on": "EXP"}, tmp_path)
    before = COUNTS["compile"]
    report = made({"fails_on": "EXP"}, tmp_path)
    assert COUNTS["compile"] - before <= 2 and elsewhere(report) == ["Exp"]
    assert ("banned", "Exp") in reasons(report) and "banned since 20" in str(report) and not report.incidents
    with pytest.raises(NotDelegatedError, match="banned since"):
        made({"fails_on": "EXP"}, tmp_path, "forbid")
    assert elsewhere(made({"fails_on": "SIGMOID"}, tmp_path)) == ["Sigmoid"]  # the ban is for other options
    assert [ban.device for ban in bans.stored_bans(tmp_path)] == ["trial"] * 2


def test_lost_device_causes_no_ban(tmp_path):
    before = COUNTS["compile"]
    COMPILES.append(DeviceLostError("the threads are not there"))
    report = made({}, tmp_path)
    assert {node.device for node in report.nodes} == {"cpu"} and COUNTS["compile"] == before + 1
    assert not bans.stored_bans(tmp_path)


def test_an_expired_ban_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(bans, "_LASTING_SECONDS", -1)
    made({"fails_on": "EXP"}, tmp_path)
    before = COUNTS["compile"]
    report = made({"fails_on": "EXP"}, tmp_path)
    assert COUNTS["compile"] - before > 5 and elsewhere(report) == ["Exp"] and report.incidents


def test_segment_size_limit_is_cached(tmp_path):
    made({"room": 4}, tmp_path)
    before = COUNTS["compile"]
    report = made({"room": 4}, tmp_path)
    assert len(report.segments) == 2 and COUNTS["compile"] == before + 2


def test_bans_are_listed_and_cleared(tmp_path):
    made({"fails_on": "EXP"}, tmp_path)

    def told(*arguments):
        done = CliRunner().invoke(main, ["cache", *arguments, "--folder", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return done.output

    assert "ban: trial" in told("ls") and "because the device failed to compile it" in told("ls")
    (ban,) = json.loads(told("ls", "--json"))["bans"]
    assert ban["device"] == "trial" and ban["stage"] == "compile" and ban["until"][:2] == "20"
    assert "removed 1 ban" in told("purge", "--bans") and "ban: " not in told("ls")
    made({"fails_on": "EXP"}, tmp_path)
    assert "and 1 ban" in told("purge") and not bans.stored_bans(tmp_path)
