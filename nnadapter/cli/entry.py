"""`nnadapter`: the group of sub-commands, each imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

import click

from nnadapter import __version__
from nnadapter.cli.command import told
from nnadapter.errors import close_names

_COMMANDS = {
    "devices": "List the devices, available or not; of one, its options.",
    "ops": "List what a device takes, or say what an operation means.",
    "report": "Say what of a model would run where, and why.",
    "run": "Run a model, and say where it ran and how long.",
    "serve": "Answer requests for a model over HTTP.",
    "compile": "Compile a model ahead of time into one file.",
    "export": "Write a model of the adapter IR as ONNX.",
    "cache": "List, verify and remove what drivers compiled and a cache keeps.",
    "bench": "Time a model beside other engines.",
    "compare": "Compare what devices compute with the CPU alone.",
    "calibrate": "Measure a device for predictions of time.",
    "conformance": "Test whether a device does what it says.",
    "new-driver": "Write a package with a driver for a new device.",
    "doctor": "Try every device, and say what is missing.",
}
"""In the order of the help, with what it says of each: a module beside this one, with a command of its name, hyphens as
underscores."""


class CommandGroup(click.Group):
    """Finds sub-commands by module name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group.list_commands`."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group.get_command`."""
        if cmd_name not in _COMMANDS:
            return None
        module = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"nnadapter.cli.{module}"), module)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group.format_commands`; nothing is imported."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group.resolve_command`: a name that is none is answered with the near ones."""
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}; {close_names(args[0], _COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """See `click.Command.invoke`."""
        with told():
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
    """Run ONNX models on accelerators that understand only part of them, and explain every decision.

    Results go to stdout, notes and progress to stderr.

    Exit codes: 0 fine, 1 the answer is no, 2 wrong use or bad input. Stopped by a signal: 130 Ctrl-C, 143 SIGTERM, 129
    SIGHUP.
    """
