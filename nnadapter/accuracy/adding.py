"""Gives the engine of a session its checks, where the session asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnadapter.accuracy.checking import SessionChecks
from nnadapter.accuracy.planned import PlannedSubject
from nnadapter.options import Options
from nnadapter.running.planned import PlannedEngine


def with_checks(make: Callable[..., PlannedEngine], options: Options) -> Callable[..., PlannedEngine]:
    """Return what makes an engine that compares its runs, as `Options.verify` and `Options.shadow` say.

    Args:
        make: makes the engine.
        options: of the session.
    """

    def made(*arguments: Any, **keyword_arguments: Any) -> PlannedEngine:
        engine = make(*arguments, **keyword_arguments)
        verify, shadow = options.verify is not None, options.shadow
        engine.checks = SessionChecks(PlannedSubject(engine), verify=verify, shadow=shadow)
        return engine

    return made
