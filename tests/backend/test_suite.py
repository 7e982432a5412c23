"""onnx's official suite through the backend, and counts on fake_npu alone.

Every third case always runs, all of them with `-m sweep`.
"""

import pytest

from tests.backend.counts import lines
from tests.backend.exclusions import EXCLUDED, KINDS, RANDOM, excluded
from tests.backend.suite import alone, official, plain

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.sweep), 10])
def every(request):
    return request.param


@pytest.fixture(scope="module")
def outcomes(every):
    return official(every, excluded())


@pytest.fixture(scope="module")
def cases(every):
    return list(alone(every))


@pytest.mark.parametrize("kind", KINDS)
def test_included_cases_pass(outcomes, kind):
    assert {name: why for name, why in outcomes[kind].items() if why and name not in excluded()} == {}


def test_excluded_cases_fail(outcomes):
    passed = [name for kind in KINDS for name, why in outcomes[kind].items() if not why]
    stale = set(passed) & excluded().keys() - set(EXCLUDED[RANDOM])
    assert stale == set(), "these pass now; take them off the list"


def test_excluded_cases_fail_in_plain_onnx_runtime_too():
    found = plain(excluded().keys(), ["node", "simple"])
    assert found.keys() == excluded().keys()
    # random results may equal the expected ones by chance
    assert {name for name, why in found.items() if not why} <= set(EXCLUDED[RANDOM])


def test_excluded_cases_exist_and_are_listed_once(outcomes):
    known = {name for kind in KINDS for name in outcomes[kind]}
    listed = [name for names in EXCLUDED.values() for name in names]
    assert set(listed) <= known and len(listed) == len(set(listed))


def test_minimum_number_of_cases_passes(outcomes, cases, every, capsys):
    with capsys.disabled():
        print("", *lines(outcomes, cases), sep="\n")
    assert sum(not why for why in outcomes["node"].values()) >= 1850 / every
    assert sum(case.whole for case in cases) >= 0.9 * sum(case.admitted for case in cases)


def test_results_on_fake_npu_are_right(cases):
    known = excluded()
    assert {case.name: case.mismatch for case in cases if case.mismatch and case.name not in known} == {}
