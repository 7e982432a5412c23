"""`nnadapter serve`: a model behind HTTP on this machine."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from nnadapter.cli.command import ModelCommand
from nnadapter.cli.inputs import converted
from nnadapter.cli.parameters import (
    Shapes,
    placing,
    requests,
    takes_cache,
    takes_placing,
    takes_settings_of_many,
)
from nnadapter.cli.progress import progress
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.process.standard_output import prints_to_stderr

_PATIENCE_S = 3600.0


@click.command(cls=ModelCommand)
@click.argument("model")
@takes_settings_of_many
@takes_placing
@takes_cache
@click.option("--name", help="Of the model in addresses. Default: that of its file.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to bind to: 0.0.0.0 for all that there are."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 for one that is free.")
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Sessions, each in a process of its own.",
)
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Most rows of one run.")
@click.option(
    "--deadline", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="That a request may take."
)
@click.option("--waiting", type=click.IntRange(min=1), default=256, show_default=True, help="Requests that may wait.")
@click.option(
    "--max-bytes", type=click.IntRange(min=1), default=64 << 20, show_default=True, help="That a request may have."
)
@click.option("--threads", type=click.IntRange(min=0), help="Of a session; 0 where devices decide. Default: one.")
def serve(
    model: str,
    devices: tuple[str, ...],
    options: Mapping[str, Mapping[str, str]],
    shape_sets: tuple[Shapes, ...],
    fallback: str,
    policy: str,
    rules: str | None,
    plan: str | None,
    cache_dir: str | None,
    name: str | None,
    host: str,
    port: int,
    replicas: int,
    batch: int,
    deadline: float | None,
    waiting: int,
    max_bytes: int,
    threads: int | None,
) -> None:
    """Answer requests for MODEL over HTTP, by the Open Inference Protocol v2, until Ctrl-C.

    Prints the model's address when it answers. Needs the extra ray.
    """
    from nnadapter.ray.serving.starting import served

    is_ready = kind_of(model) is SourceKind.COMPILED and not (devices or options)  # it has devices of its own
    chosen = replace(placing(policy, rules, plan, fallback), cache_dir=cache_dir)
    settings: dict[str, Any] = {
        "devices": None if is_ready else requests(devices, options),
        "options": chosen,
        "name": name or Path(model).stem,
        "max_batch_size": batch,
        "replicas": replicas,
        "deadline_s": deadline,
        "max_waiting": waiting,
        "max_request_bytes": max_bytes,
        "input_shapes": shape_sets or None,
        "threads": threads,
    }
    with ExitStack() as stack:
        stack.enter_context(_stopped_by_signals())
        with prints_to_stderr(), progress("starting"):
            address = stack.enter_context(served(converted(model, chosen), host=host, port=port, **settings))
        click.echo(address)
        with prints_to_stderr():
            with suppress(KeyboardInterrupt):  # the usual end of a server
                while True:
                    time.sleep(_PATIENCE_S)
            stack.close()  # here, since Ray has last words


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Who runs servers ends them by SIGTERM, which is as Ctrl-C; that is ignored in the background of a shell."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
