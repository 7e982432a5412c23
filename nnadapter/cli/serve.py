"""`nnadapter serve`: HTTP server for a model on this machine."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click

from nnadapter.cli import parameters
from nnadapter.cli.command import ModelCommand
from nnadapter.options import Options
from nnadapter.process.terminal import StopRequested, prints_to_stderr, report


@click.command(cls=ModelCommand)
@click.argument("model")
@parameters.takes_settings_of_many
@parameters.takes_placing
@parameters.takes_cache
@click.option("--name", help="Name of the model in URLs. Default: the name of its file.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all network interfaces."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of copies of the model that run concurrently, each in a process of its own.",
)
@click.option(
    "--max-batch-size",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Maximum number of rows (first dimension of the inputs) in one run, which combines waiting requests.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time after which a request fails.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Maximum number of waiting requests; further ones are refused.",
)
@click.option(
    "--max-request-bytes",
    type=click.IntRange(min=1),
    default=64 << 20,
    show_default=True,
    help="Maximum size of a request in bytes.",
)
@click.option("--threads", type=click.IntRange(min=0), help="Threads per session; 0 lets devices decide. Default: 1.")
def serve(
    model: str,
    devices: tuple[str, ...],
    options: parameters.DeviceOptions,
    shape_sets: tuple[parameters.Shapes, ...],
    settings: Options,
    name: str | None,
    host: str,
    port: int,
    replicas: int,
    max_batch_size: int,
    deadline: float | None,
    max_queue: int,
    max_request_bytes: int,
    threads: int | None,
) -> None:
    """Serve MODEL over HTTP, by the Open Inference Protocol v2, until Ctrl-C or SIGTERM.

    The address is printed when the server is ready. After a signal, the server finishes its current requests; a second
    signal ends it at once. Requires `pip install 'nnadapter[ray]'`.
    """
    from nnadapter.ray.serving.application import serve_until_stopped

    arguments: dict[str, Any] = {
        "devices": parameters.requests_for(model, devices, options),
        "options": settings,
        "name": name or Path(model).stem,
        "max_batch_size": max_batch_size,
        "replicas": replicas,
        "deadline_s": deadline,
        "max_queued_requests": max_queue,
        "max_request_bytes": max_request_bytes,
        "input_shapes": shape_sets or None,
        "threads": threads,
    }
    with ExitStack() as stack:
        stack.enter_context(prints_to_stderr())
        stack.enter_context(parameters.progress("starting"))

        def announce(address: str) -> None:
            """Print the address to stdout, then redirect libraries' output to stderr again."""
            stack.close()
            click.echo(address)
            stack.enter_context(prints_to_stderr())

        code = 0
        number = serve_until_stopped(
            parameters.converted(model, settings), host=host, port=port, on_ready=announce, **arguments
        )
        if number:
            code = report(StopRequested(number))
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # Ray would wait for processes that have ended
