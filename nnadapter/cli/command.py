"""What every sub-command does alike: errors as one line, fallback as notes, device options in the help."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

import click

import nnadapter
from nnadapter.errors import (
    CacheWarning,
    ConversionWarning,
    DriverError,
    DriverWarning,
    FallbackWarning,
    NNAdapterError,
    NotDelegatedError,
)
from nnadapter.process.standard_output import prints_to_stderr
from nnadapter.process.stopping import report, stop_in

NO = 1
"""Exit code: the question was understood and the answer is no."""
BAD_INPUT = 2
"""Exit code: wrong use, or a model, a file or an option that cannot be used."""


class Failure(click.ClickException):
    """Ends the program with one line on stderr."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for the class and reads it off the instance


class Command(click.Command):
    """A sub-command."""

    def invoke(self, ctx: click.Context) -> object:
        """See `click.Command.invoke`."""
        with told() if ctx.parent is None else nullcontext():  # the group's hold for its commands
            return super().invoke(ctx)


class ModelCommand(Command):
    """A sub-command that loads a model for some devices; its help lists the options of every available device."""

    def invoke(self, ctx: click.Context) -> object:
        """See `click.Command.invoke`."""
        _silence_onnxruntime()
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command.format_epilog`. Drivers are loaded here, and so for the help alone."""
        super().format_epilog(ctx, formatter)
        with prints_to_stderr():
            devices = nnadapter.devices()
        for device in devices:
            if device.capability is not None and device.capability.options:
                with formatter.section(f"Options of device {device.name} (--option {device.name}.NAME=VALUE)"):
                    formatter.write_dl([option_row(option) for option in device.capability.options])


def option_row(option: Any) -> tuple[str, str]:
    """Name and description of a device's option (`nnadapter.drivers.Option`), as help shows them."""
    if isinstance(option.default, tuple):
        kind, default = "names with commas", ",".join(option.default) or "none"
    else:
        kind, default = "|".join(option.choices) or type(option.default).__name__, str(option.default) or "empty"
    least = "" if option.minimum is None else f", at least {option.minimum}"
    return option.name, f"{option.help}  [{kind}{least}; default: {default}]"


@contextmanager
def told() -> Iterator[None]:
    """Report errors and stop signals as one line and an exit code, and warnings of fallback as notes."""
    try:
        with _notes():
            yield
    except BaseException as error:
        stop = stop_in(error)
        if stop is not None:
            raise click.exceptions.Exit(report(stop)) from None
        if isinstance(error, NNAdapterError):
            raise Failure(str(error), _exit_code(error)) from error
        if isinstance(error, MemoryError):
            raise Failure(f"not enough memory: {error}; take smaller shapes") from error
        raise


def _exit_code(error: NNAdapterError) -> int:
    # Where fallback is forbidden, a device that does not do it all is a no, and nothing that the person did wrong.
    refused = isinstance(error, NotDelegatedError)
    broke = isinstance(error, DriverError) and error.device not in (None, "cpu")
    return NO if refused or broke else BAD_INPUT


_NOTED = (FallbackWarning, DriverWarning, CacheWarning, ConversionWarning)


@contextmanager
def _notes() -> Iterator[None]:
    """Show warnings of fallback and of drivers as notes, each once; all others stay as they are."""
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
    """Keep ONNX Runtime from printing what it raises as well."""
    from nnadapter.process.real_onnxruntime import onnxruntime

    onnxruntime.set_default_logger_severity(4)
