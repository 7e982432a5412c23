from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from nnadapter.drivers.faulty import Fault, Faults, Phase, Script, Subject, make
from nnadapter.errors import DeviceLostError, FaultScriptError

SUBJECT = Subject((("CONV_2D", ("conv1",)), ("RELU", ("relu1", "relu2"))))


def calls_of(fault, count=20, seed=0, subject=SUBJECT):
    """Return the numbers of the calls at which a fault occurs."""
    moment = Faults(Script(faults=(fault,), seed=seed)).moment(Phase.RUN, subject)
    return [call for call in range(1, count + 1) if moment is not None and moment.due()]


def slow(**when):
    return Fault(kind="slow", phase="run", seconds=0, **when)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({}, list(range(1, 21))),
        ({"nth": 3}, [3]),
        ({"from_": 19}, [19, 20]),
        ({"every": 7}, [1, 8, 15]),
        ({"from_": 5, "every": 5, "times": 2}, [5, 10]),
        ({"times": 2}, [1, 2]),
        ({"probability": 0}, []),
        ({"op_type": "Conv", "nth": 1}, [1]),
        ({"op_type": "conv2d", "name": "conv*", "nth": 1}, [1]),
        ({"op_type": "Conv", "name": "relu1"}, []),
        ({"name": "relu2", "nth": 1}, [1]),
        ({"op_type": "MatMul"}, []),
    ],
)
def test_faults_occur_at_matching_calls(when, expected):
    assert calls_of(slow(**when)) == expected


def test_probability_depends_on_the_seed():
    fault = slow(probability=0.25)
    drawn = [calls_of(fault, 4000, seed) for seed in (1, 2)]
    assert drawn[0] == calls_of(fault, 4000, 1) != drawn[1]
    assert all(800 < len(calls) < 1200 for calls in drawn)  # 1000 +- 7 * 27, the standard deviation
    assert calls_of(fault, 4000, 1, Subject((("ADD", ()),))) != drawn[0]


def test_faults_do_not_depend_on_threads():
    script = Script(faults=(slow(probability=0.3), slow(probability=0.1, times=20)), seed=4)
    subjects = [Subject((("ADD", (f"n{number}",)),)) for number in range(3)]

    def drawn(threads):
        faults = Faults(script)
        moments = [faults.moment(Phase.RUN, subject) for subject in subjects]

        def call(number):
            return [(number % 3, due.number, due.call, due.draw) for due in moments[number % 3].due()]

        with ThreadPoolExecutor(threads) as pool:
            return sorted(pair for drawn_faults in pool.map(call, range(600)) for pair in drawn_faults if pair[1] == 1)

    assert drawn(1) == drawn(8)


def test_a_lost_device_stays_lost_or_comes_back():
    for seconds, comes_back in ((None, False), (0.0, True)):
        fault = Fault(kind="device_lost", phase="run", nth=1, seconds=seconds)
        faults = Faults(Script(faults=(fault,)))
        run, create, close = (faults.moment(phase, SUBJECT) for phase in (Phase.RUN, Phase.CREATE, Phase.CLOSE))
        with pytest.raises(DeviceLostError, match="fault 1"):
            make(run, run.due())
        assert not close.due()  # a lost device can be closed
        if comes_back:
            assert not create.due() and not run.due()
        else:
            for moment in (create, run):
                with pytest.raises(DeviceLostError, match="is lost"):
                    moment.due()


def test_call_counts_continue_from_the_log(tmp_path):
    log = tmp_path / "log"
    script = Script(faults=(slow(from_=2, every=3), slow(times=1)), log=str(log))

    def some(count):
        moment = Faults(script).moment(Phase.RUN, SUBJECT)
        results = []
        for _ in range(count):
            due = moment.due()
            results += [(fault.number, fault.call) for fault in due]
            make(moment, due)
        return results

    assert some(2) == [(2, 1), (1, 2)]
    assert some(3) == [(1, 5)]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["fault"], line["kind"], line["phase"], line["call"]) for line in lines] == [
        (2, "slow", "run", 1),
        (1, "slow", "run", 2),
        (1, "slow", "run", 5),
    ]
    log.write_text("no JSON\n[]\n" + log.read_text()[:-5])
    assert some(3) == [(1, 5)]  # the last line is truncated


def test_unwritable_log(tmp_path):
    with pytest.raises(FaultScriptError, match=r"key 'log': .* cannot be written"):
        Faults(Script(log=str(tmp_path / "nowhere" / "log")))
