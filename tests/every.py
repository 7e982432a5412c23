"""Many small cases as one test: a test of its own for each takes several times as long as what it checks."""

from __future__ import annotations

import reprlib
from itertools import product


def for_every(**tables):
    """Have one test check a function with every combination of arguments; it tells all that fail, each with its own."""
    combinations = [dict(zip(tables, values, strict=True)) for values in product(*tables.values())]
    assert combinations

    def made(check):
        def test():
            failures = []
            for arguments in combinations:
                try:
                    check(**arguments)
                except Exception as error:  # noqa: BLE001  whatever it is, the other cases are checked as well
                    error.add_note("with " + ", ".join(f"{name}={reprlib.repr(it)}" for name, it in arguments.items()))
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(combinations)} cases fail", failures)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return made
