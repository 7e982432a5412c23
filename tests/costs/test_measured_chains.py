"""Cost lines measured in chains, scaled by the times of networks."""

from __future__ import annotations

import pytest

from nnadapter.costs import Launches, Line, ProgramTiming, networks, scale_to_networks, seconds_by_kind
from nnadapter.costs.probes import probes

LINES = {
    probe.kind: Line(seconds=2e-6, seconds_per_flop=1e-11, seconds_per_byte=1e-11, error=0.0) for probe in probes()
}
LAUNCHES = Launches(segment=1e-5, sole_segment=1e-6, tensor=0.0, byte=0.0)


def timed(slower):
    """Return timings of the networks on a device that needs `slower` times its line for some classes."""
    found = {}
    for name, model in networks().items():
        by_kind = seconds_by_kind(LINES, model)
        seconds = sum(each * slower.get(kind.operation_class.value, 1.0) for kind, each in by_kind.items())
        found[name] = ProgramTiming(model, None, [], [], [], [LAUNCHES.sole_segment + seconds])
    return found


def test_networks_that_match_the_lines_change_nothing():
    result = scale_to_networks(LINES, LAUNCHES, timed({}))
    for kind, line in result.lines.items():
        assert line.seconds == pytest.approx(LINES[kind].seconds, rel=1e-6)
    assert result.launches.sole_segment == pytest.approx(LAUNCHES.sole_segment, rel=1e-6)


def test_classes_slower_in_networks_are_scaled():
    measured = timed({"convolution": 2.0, "recurrent": 0.5})
    result = scale_to_networks(LINES, LAUNCHES, measured)
    factors = {str(kind): line.seconds / LINES[kind].seconds for kind, line in result.lines.items()}
    assert factors["convolution"] == pytest.approx(2.0, rel=0.15)
    assert factors["recurrent"] == pytest.approx(0.5, rel=0.25)
    assert factors["matrix"] == pytest.approx(1.0, rel=0.15)
    off = [abs(result.predicted[name] / each.seconds - 1) for name, each in measured.items()]
    assert sorted(off)[len(off) // 2] < 0.1 and max(off) < 0.6


def test_few_networks_change_nothing():
    few = dict(list(timed({"convolution": 2.0}).items())[:5])
    result = scale_to_networks(LINES, LAUNCHES, few)
    assert result.lines is LINES and result.predicted.keys() == few.keys()
