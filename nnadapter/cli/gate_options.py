"""Options of `nnadapter report` that limit what a plan may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def takes_gates(command: Decorated) -> Decorated:
    """Add --min-coverage, --max-segments and --max-latency: `min_coverage`, `max_segments`, `max_latency`."""
    for decorator in reversed(_DECORATORS):
        command = decorator(command)
    return command


def _share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """0.95 and 95% are the same."""
    if value is None:
        return None
    percent = value.strip().endswith("%")
    number = _number(value.strip().removesuffix("%"))
    share = number / 100 if percent else number
    if not 0 <= share <= 1:
        raise click.BadParameter(f"{value!r} is no share of nodes; write 0.95 or 95%")
    return share


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    milliseconds = _number(value)
    if not milliseconds > 0 or math.isinf(milliseconds):
        raise click.BadParameter(f"{value!r} is no time; write milliseconds, such as 12.5")
    return milliseconds / 1e3


def _number(text: str) -> float:
    """Not a number where `text` is none, which every comparison refuses."""
    try:
        return float(text)
    except ValueError:
        return math.nan


_DECORATORS = (
    click.option(
        "--min-coverage", metavar="X", callback=_share,
        help="Exit with 1 if less than this share of the nodes runs off the CPU: 0.95 or 95%.",
    ),
    click.option(
        "--max-segments", type=click.IntRange(min=0), metavar="N",
        help="Exit with 1 if the plan has more segments, the CPU's counted.",
    ),
    click.option(
        "--max-latency", metavar="MS", callback=_seconds,
        help="Exit with 1 if the cost, by policy measured a timed one and else a predicted one, is above this many "
        "milliseconds; an error where no costs are known.",
    ),
)  # fmt: skip
