"""Tables of many small cases in one test, since the overhead of a test exceeds that of a case."""

from __future__ import annotations

import reprlib
from itertools import combinations_with_replacement, product

import pytest

from tests.optional import missing_for_devices, skip_without


def for_every(**tables):
    """Run the test for every combination of arguments; report all failures with their arguments."""
    cases = _combinations(tables)
    assert cases

    def made(check):
        def test():
            _check_each(check, cases)

        return _named_like(check, test)

    return made


def for_every_pair(**tables):
    """Run combinations such that each pair of values occurs; all of them with `-m sweep`."""
    return _some_or_all(pairwise, tables)


def for_every_value(**tables):
    """Run the fewest combinations such that each value occurs; all of them with `-m sweep`."""
    return _some_or_all(valuewise, tables)


def few_of(values, *few):
    """Return the values as test parameters: `few` always run, others with `-m sweep`."""
    assert set(few) <= set(values)
    rows = [each if isinstance(each, tuple) else (each,) for each in values]
    return [
        pytest.param(*row, marks=() if each in few else pytest.mark.sweep)
        for row, each in zip(rows, values, strict=True)
    ]


def _some_or_all(some, tables):
    assert _combinations(tables)

    def made(check):
        @pytest.mark.parametrize("chosen", [pytest.param(_combinations, marks=pytest.mark.sweep, id="all"), some])
        def test(chosen):
            _check_each(check, chosen(tables))

        return _named_like(check, test)

    return made


def valuewise(tables) -> list[dict]:
    """Choose combinations such that each value of each table is in one of them."""
    return _covering(tables, 1)


def pairwise(tables) -> list[dict]:
    """Choose combinations such that each value of each table meets each value of each other table."""
    return _covering(tables, 2)


def _covering(tables, together: int) -> list[dict]:
    """Choose combinations greedily until every group of `together` values is covered."""
    names = {name: list(values) for name, values in tables.items()}
    candidates = list(product(*(range(len(values)) for values in names.values())))
    missing = {group for candidate in candidates for group in _groups(candidate, together)}
    chosen = []
    while missing:
        best = max(candidates, key=lambda candidate: len(missing & _groups(candidate, together)))
        missing -= _groups(best, together)
        chosen.append({name: values[at] for (name, values), at in zip(names.items(), best, strict=True)})
    return chosen


def _groups(candidate, together: int) -> set:
    return set(combinations_with_replacement(enumerate(candidate), together))


def _combinations(tables) -> list[dict]:
    return [dict(zip(tables, values, strict=True)) for values in product(*tables.values())]


def _named_like(check, test):
    assert not hasattr(check, "pytestmark"), "marks stand above: they are of the one test"
    test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
    return test


def _check_each(check, cases) -> None:
    failures, skipped = [], []
    for arguments in cases:
        try:
            missing = missing_for_devices(arguments)
            if missing:
                skip_without(missing)
            check(**arguments)
        except pytest.skip.Exception as reason:
            skipped.append(reason)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  go on with the other cases
            error.add_note("with " + ", ".join(f"{name}={reprlib.repr(it)}" for name, it in arguments.items()))
            failures.append(error)
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(cases)} cases fail", failures)
    if len(skipped) == len(cases):
        raise skipped[0]
