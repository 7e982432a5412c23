"""`nnadapter conformance DEVICE`: tests of a driver against its own claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click

from nnadapter.cli import parameters
from nnadapter.cli.command import NO, Failure, ModelCommand
from nnadapter.drivers.isolation.isolated_device import TIME_LIMIT_S
from nnadapter.testing.kit import ScoreCard, cases_of, keep_failure, run_cases, score_to_text, to_markdown
from nnadapter.testing.subjects import Bench, Case, FailedOutcome, Outcome, Precision, Settings

_FORMATS: Mapping[str, Callable[[ScoreCard], str]] = {
    "text": score_to_text,
    "json": lambda card: parameters.to_json(card.to_dict()),
    "md": to_markdown,
}

_SUFFIXES = {"text": "txt"}


@click.command(cls=ModelCommand)
@click.argument("device")
@parameters.takes_options
@click.option(
    "-k",
    "pattern",
    default="",
    metavar="NAME",
    help="Run only test cases with this text in their name, such as operations/ADD; wildcards are allowed.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), help="Maximum number of cases per group, such as operations or onnx."
)
@click.option("--short", is_flag=True, help="Run fewer cases of each kind, as a quick check.")
@click.option(
    "--precision", type=parameters.OneOf([member.value for member in Precision]), default=Precision.FLOAT32.value,
    show_default=True,
    help="Precision in which the device computes float32; results are compared accordingly.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of all random numbers.")
@click.option(
    "--time-limit", type=click.FloatRange(min=0, min_open=True), default=TIME_LIMIT_S, show_default=True,
    help="Maximum seconds for one request to the driver.",
)  # fmt: skip
@click.option(
    "--format",
    "form",
    type=parameters.OneOf(list(_FORMATS)),
    default="text",
    show_default=True,
    help="Format of the score card.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option(
    "-o", "folder", metavar="DIR",
    help=("Folder for the score card in all formats and, for each failure, the model, inputs, expected "
"and actual outputs, versions, and the command that repeats it."),
)  # fmt: skip
def conformance(
    device: str,
    options: parameters.DeviceOptions,
    pattern: str,
    limit: int | None,
    short: bool,
    precision: str,
    seed: int,
    time_limit: float,
    form: str,
    as_json: bool,
    folder: str | None,
) -> None:
    """Test whether the driver of DEVICE does what it claims.

    Cases run in a worker process, which is replaced after a crash: operations of the adapter IR with usual and
    unusual shapes, onnx's operator tests, random graphs, invalid models, contexts, threads, stored programs and
    memory. Cases that the device does not claim to support are left out. The exit code is 1 unless all cases pass.
    """
    parameters.requests((device,), options)
    settings = Settings(
        device=device,
        options=options.get(device, {}),
        precision=Precision(precision),
        seed=seed,
        time_limit_s=time_limit,
        short=short,
    )
    bench = Bench(settings)
    try:
        card = _run(bench, pattern, limit, None if folder is None else Path(folder))
    finally:
        bench.close()
    click.echo(_FORMATS["json" if as_json else form](card).rstrip("\n"))
    if not card.all_passed:
        click.get_current_context().exit(NO)


def _run(bench: Bench, pattern: str, limit: int | None, folder: Path | None) -> ScoreCard:
    cases = cases_of(bench, pattern, limit)
    if not cases:
        raise Failure(f"no case has {pattern!r} in its name; names start with operations/, boundary/, onnx/ and so on")
    if folder is not None:
        parameters.make_folder(folder)
    with parameters.progress("conformance", len(cases)) as advance:

        def on_outcome(case: Case, outcome: Outcome) -> None:
            advance()
            if folder is not None and isinstance(outcome, FailedOutcome):
                _keep(folder, bench, case, outcome)

        card = run_cases(bench, cases, on_outcome)
    if folder is not None:
        for form, render in _FORMATS.items():
            text = render(card).rstrip("\n") + "\n"
            parameters.write_output(folder / f"score.{_SUFFIXES.get(form, form)}", partial(_write, text))
    return card


def _write(text: str, file: BinaryIO) -> None:
    file.write(text.encode())


def _keep(folder: Path, bench: Bench, case: Case, failed: FailedOutcome) -> None:
    try:
        keep_failure(folder / "failures", bench.settings, case.name, failed)
    except OSError as error:
        raise Failure(f"{str(folder)!r} cannot be written: {error.strerror or error}; give another path") from error
