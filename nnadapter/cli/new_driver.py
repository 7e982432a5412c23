"""`nnadapter new-driver`: a package with a small working driver in it, and Paddle's plug-in of a driver in C."""

from __future__ import annotations

from pathlib import Path

import click

from nnadapter.cli.command import Command
from nnadapter.cli.parameters import OneOf
from nnadapter.drivers.registry import sources
from nnadapter.new_driver import LANGUAGES, write_driver, write_plug_in


@click.command("new-driver", cls=Command)
@click.argument("name")
@click.option("--lang", "language", type=OneOf(LANGUAGES), default="python", show_default=True)
@click.option(
    "--paddle",
    is_flag=True,
    help="Paddle's plug-in as well, by which the driver is a custom device of Paddle; of a driver in C that is there "
    "already, the plug-in alone.",
)
@click.option("-o", "folder", type=click.Path(path_type=Path), help="The folder to make; NAME if not given.")
def new_driver(name: str, language: str, paddle: bool, folder: Path | None) -> None:
    """Write a package with a driver for a new device NAME, ready to install, its own tests included."""
    if paddle and name in sources():
        folder = folder or Path(f"paddle_{name}")
        _list_files(write_plug_in(name, folder))
        click.echo(f"\nnext:\n{_plug_in_steps(folder)}")
        return
    folder = folder or Path(name)
    _list_files(write_driver(name, folder, language, paddle=paddle))
    click.echo(
        f"\nnext:\n  pip install {_local(folder)}\n  pytest {folder / 'tests'}\n"
        f"  nnadapter report {folder / 'example.onnx'} -d {name}\n  nnadapter run {folder / 'example.onnx'} -d {name}"
    )
    if paddle:
        click.echo(_plug_in_steps(folder / "paddle"))


def _list_files(written: tuple[Path, ...]) -> None:
    for path in written:
        click.echo(path)


def _plug_in_steps(folder: Path) -> str:
    return (
        "  pip install paddlepaddle 'setuptools>=70.1'\n"
        f"  pip install --no-build-isolation {_local(folder)}\n  pytest {folder / 'tests'}"
    )


def _local(folder: Path) -> str:
    """The folder as pip knows it for one."""
    return str(folder) if folder.is_absolute() or len(folder.parts) > 1 else f"./{folder}"
