"""Many small cases as one test: a test of its own for each takes several times as long as what it checks."""

from __future__ import annotations

import reprlib
from itertools import product

import pytest

from tests.optional import missing_for_devices, skip_without


def for_every(**tables):
    """Have one test check a function with every combination of arguments; it tells all that fail, each with its own."""
    combinations = [dict(zip(tables, values, strict=True)) for values in product(*tables.values())]
    assert combinations

    def made(check):
        assert not hasattr(check, "pytestmark"), "marks stand above: they are of the one test"

        def test():
            failures, skipped = [], []
            for arguments in combinations:
                try:
                    missing = missing_for_devices(arguments)
                    if missing:
                        skip_without(missing)
                    check(**arguments)
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  whatever it is, others are checked
                    error.add_note("with " + ", ".join(f"{name}={reprlib.repr(it)}" for name, it in arguments.items()))
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(combinations)} cases fail", failures)
            if len(skipped) == len(combinations):
                raise skipped[0]

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return made
