"""`nnadapter tune`: the fastest configuration within an accuracy budget."""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import click

import nnadapter
from nnadapter.cli import parameters
from nnadapter.cli.command import NO, Failure, ModelCommand
from nnadapter.cli.quantize import takes_data, takes_max_samples
from nnadapter.errors import describe
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.records import replace


@click.command(cls=ModelCommand)
@click.argument("model")
@parameters.takes_device
@parameters.takes_options
@takes_data
@click.option(
    "--metric", metavar="FILE.py:FUNCTION",
    help=("Python function that rates outputs. Its arguments: a list with the output arrays of each sample, and a list "
"with the data of each sample (the arrays of an .npz file, or the path of another file). It returns a number or one "
"per sample; larger is better. Default: SQNR, the closeness to the float32 outputs."),
)  # fmt: skip
@click.option(
    "--max-drop", metavar="X[%]",
    help=("With --metric, the largest allowed drop of its value, with % relative to the float model  [default: 1%]. "
"Without --metric, the least allowed SQNR of any output, in dB  [default: 20]."),
)  # fmt: skip
@click.option(
    "-o", "--output", metavar="FILE",
    help=("File to write: FILE.onnx for a model with QuantizeLinear and DequantizeLinear nodes, any other name for a "
"compiled model for `nnadapter run`."),
)  # fmt: skip
@click.option("--report", "page", metavar="FILE.html", help="Page to write, with a chart of time against accuracy.")
@click.option(
    "--max-evaluations", type=click.IntRange(min=1), metavar="N", help="Maximum number of configurations to evaluate."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), metavar="S",
    help="Time limit of the search; it ends with the best configuration so far. Ctrl-C does the same.",
)  # fmt: skip
@click.option(
    "--search-on", metavar="DEVICE",
    help="Device to search on if that of --device is slow, such as an emulator. The result is verified on --device.",
)  # fmt: skip
@click.option(
    "--rules", metavar="FILE", help="TOML file with pins and bans of devices and precisions, as in `nnadapter report`."
)
@takes_max_samples
@parameters.takes_format
def tune(
    model: str, devices: tuple[str, ...], options: parameters.DeviceOptions, data: str, metric: str | None,
    max_drop: str | None, output: str | None, page: str | None, form: str, rules: str | None, **settings: Any,
) -> None:  # fmt: skip
    """Find the fastest way to run MODEL on devices within an accuracy budget, by measurement.

    Each part of the model gets a device, a floating precision, and possibly integers of 8, 16 or 4 bits. Every fifth of
    10 or more samples is held out, to show whether the result holds for other data.

    The exit code is 1 if nothing faster than float32 on the CPU is within the budget.
    """
    chosen, source = parameters.requests(devices, options), parameters.converted(model, Options())
    function = None if metric is None else _function(metric)
    with prints_to_stderr():
        report = nnadapter.tune(
            source, chosen, data, function, max_drop, output, rules=None if rules is None else Path(rules),
            progress=_progress, **settings,
        )  # fmt: skip
    report = replace(report, command=shlex.join(["nnadapter", *sys.argv[1:]]))
    if page is not None:
        parameters.write_output(page, lambda file: file.write(report.to_html().encode()))
    click.echo(report.to_json() if form == "json" else str(report))
    if report.time >= report.cpu_time:
        raise click.exceptions.Exit(NO)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _function(named: str) -> Any:
    path, separator, name = named.rpartition(":")
    if not separator or not path or not name:
        raise click.BadParameter(f"{named!r} is not a function; write FILE.py:FUNCTION", param_hint="'--metric'")
    if not Path(path).is_file():
        raise Failure(f"{path!r} is no Python file; check the path of --metric")
    sys.path.insert(0, str(Path(path).parent))
    try:
        function = runpy.run_path(path).get(name)
    except Exception as error:
        raise Failure(f"{path!r} of --metric raised {describe(error)}") from error
    if not callable(function):
        raise Failure(f"{path!r} has no function {name!r}; check --metric")
    return function
