"""Base classes of commands, and the group of sub-commands."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, TextIO

import click

import nnadapter
from nnadapter import __version__, errors
from nnadapter.process.terminal import prints_to_stderr, report, stop_in

NO = 1
"""Exit code of a failed check or comparison."""
BAD_INPUT = 2
"""Exit code of wrong usage or input."""
MODELS = (
    "A model is an ONNX file, a Paddle model (its folder or program file), a PyTorch program (FILE.pt2), "
    "or SCRIPT.py:FUNCTION that returns a PyTorch module and its inputs."
)
"""Kinds of models that every command accepts, for the help."""


class Failure(click.ClickException):
    """Error that ends the program with one line on stderr."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for the class and reads it off the instance


class Command(click.Command):
    """Sub-command that reports errors as one line."""

    def invoke(self, ctx: click.Context) -> object:
        with report_errors() if ctx.parent is None else nullcontext():  # the group reports errors of its commands
            return super().invoke(ctx)


class ModelCommand(Command):
    """Sub-command for models or devices; its help lists the options of every available device."""

    def invoke(self, ctx: click.Context) -> object:
        _silence_onnxruntime()
        return super().invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if any(parameter.name in ("model", "models") for parameter in self.params):
            formatter.write_paragraph()
            with formatter.indentation():
                takes_compiled = self.name not in ("compile", "tune")
                formatter.write_text(f"{MODELS} It can also be a compiled file." if takes_compiled else MODELS)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with prints_to_stderr():
            devices = nnadapter.devices()
        for device in devices:
            if device.capability is not None and device.capability.options:
                with formatter.section(f"Options of device {device.name} (--option {device.name}.NAME=VALUE)"):
                    formatter.write_dl([option_row(option) for option in device.capability.options])


def option_row(option: Any) -> tuple[str, str]:
    if isinstance(option.default, tuple):
        kind, default = "comma-separated names", ",".join(option.default) or "none"
    else:
        kind, default = "|".join(option.choices) or type(option.default).__name__, str(option.default) or "empty"
    least = "" if option.minimum is None else f", at least {option.minimum}"
    return option.name, f"{option.help}  [{kind}{least}; default: {default}]"


@contextmanager
def report_errors() -> Iterator[None]:
    """Report errors and stop signals as one line and an exit code, and warnings as notes."""
    try:
        with _notes():
            yield
    except BaseException as error:
        stop = stop_in(error)
        if stop is not None:
            raise click.exceptions.Exit(report(stop)) from None
        if isinstance(error, errors.NNAdapterError):
            raise Failure(str(error), _exit_code(error)) from error
        if isinstance(error, MemoryError):
            raise Failure(f"not enough memory: {error}; use smaller shapes") from error
        raise


def _exit_code(error: errors.NNAdapterError) -> int:
    # With forbidden fallback, a device that refuses or fails is a negative result.
    refused = isinstance(error, errors.NotDelegatedError)
    broke = isinstance(error, errors.DriverError) and error.device not in (None, "cpu")
    return NO if refused or broke else BAD_INPUT


_NOTED = (errors.FallbackWarning, errors.DriverWarning, errors.CacheWarning, errors.ConversionWarning)


@contextmanager
def _notes() -> Iterator[None]:
    shown: set[str] = set()
    with warnings.catch_warnings():
        for noted in _NOTED:
            warnings.simplefilter("always", noted)
        as_before = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], filename: str, lineno: int,
            file: TextIO | None = None, line: str | None = None,
        ) -> None:  # fmt: skip
            if not issubclass(category, _NOTED):
                as_before(message, category, filename, lineno, file, line)
            elif str(message) not in shown:
                shown.add(str(message))
                click.echo(f"note: {' '.join(str(message).split())}", err=True)

        warnings.showwarning = show
        yield


def _silence_onnxruntime() -> None:
    from nnadapter.process.real_onnxruntime import onnxruntime

    onnxruntime.set_default_logger_severity(4)


_COMMANDS = {
    "devices": "List devices, or one device with its options.",
    "ops": "List the operations that a device supports, or describe one.",
    "report": "Report which device would run each node, and why.",
    "run": "Run a model, and print its outputs, times and devices.",
    "serve": "Serve a model over HTTP.",
    "compile": "Compile a model ahead of time into one file.",
    "quantize": "Quantize a model for devices that compute on integers.",
    "tune": "Find the fastest precision within an accuracy budget.",
    "export": "Convert a model in adapter IR, the format of drivers, to ONNX.",
    "cache": "List, check, explain and remove compiled programs in the cache.",
    "bench": "Compare the speed of devices with other inference engines.",
    "compare": "Compare the outputs of devices with the CPU.",
    "calibrate": "Measure the speed of a device, to predict run times.",
    "conformance": "Test whether a driver does what it claims.",
    "new-driver": "Create a Python package with a driver for a new device.",
    "doctor": "Test every device, and report what is missing and how to get it.",
}
_MODULES = {
    "bench": "run",
    "cache": "compile",
    "calibrate": "devices",
    "compare": "report",
    "doctor": "devices",
    "export": "compile",
    "new-driver": "devices",
    "ops": "devices",
}


class CommandGroup(click.Group):
    """Group that imports sub-commands by module and function name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"nnadapter.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; {errors.close_names(args[0], _COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        with report_errors():
            return super().invoke(ctx)


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"nnadapter {__version__}")
        ctx.exit()


@click.group("nnadapter", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def main() -> None:
    """Run ONNX, PyTorch and Paddle models on accelerators that support only part of them, and explain every decision.

    Begin with `nnadapter devices`, then `nnadapter report MODEL -d DEVICE`. Results go to stdout, notes and progress to
    stderr.

    Exit codes: 0 success, 1 negative result, 2 wrong usage or input. After a signal: 130 Ctrl-C, 143 SIGTERM, 129
    SIGHUP.
    """
