"""What is wrong with operations and converters that packages bring: all of them are imported and looked at."""

from __future__ import annotations

from nnadapter.converters.registry import converted
from nnadapter.ir.operations import BROUGHT as OPERATIONS
from nnadapter.onnx.brought_converters import BROUGHT, GROUP, key_of


def problems_of_packages() -> list[str]:
    """Return why operations and converters from outside are not used, a sentence each; empty if all are."""
    problems = [problem for group in (OPERATIONS, BROUGHT) for name in group.all if (problem := group.problem_of(name))]
    return [*problems, *_hidden()]


def _hidden() -> list[str]:
    own = {(*op, version) for op, versions in converted().items() for version in versions}
    return [
        f"{name!r} of {plug_in.distribution} ({GROUP}) is not used: nnadapter converts this op itself; its vendor must "
        "take another domain"
        for name, plug_in in BROUGHT.all.items()
        if not plug_in.problem and key_of(name) in own
    ]
