"""The command that runs a case, or all of them, again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from nnadapter.testing.bench import Settings
from nnadapter.testing.tolerances import Precision

_USUAL = Settings(device="")


def repeat_command(settings: Settings, name: str = "") -> str:
    """The words that a shell takes."""
    return shlex.join(_words(settings, name))


def _words(settings: Settings, name: str) -> Iterator[str]:
    yield from ("nnadapter", "conformance", settings.device)
    for option, value in settings.options.items():
        text = ",".join(value) if isinstance(value, (tuple, list)) else str(value)
        yield from ("--option", f"{settings.device}.{option}={text}")
    if settings.precision is not Precision.FLOAT32:
        yield from ("--precision", settings.precision.value)
    if settings.seed != _USUAL.seed:
        yield from ("--seed", str(settings.seed))
    if settings.time_limit_s != _USUAL.time_limit_s:
        yield from ("--time-limit", f"{settings.time_limit_s:g}")
    if settings.short:
        yield "--short"
    if name:
        yield from ("-k", name)
