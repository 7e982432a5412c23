"""`nnadapter new-driver`: a package with a small working driver in it."""

from __future__ import annotations

from pathlib import Path

import click

from nnadapter.cli.command import Command
from nnadapter.cli.parameters import OneOf
from nnadapter.new_driver import LANGUAGES, write_driver


@click.command("new-driver", cls=Command)
@click.argument("name")
@click.option("--lang", "language", type=OneOf(LANGUAGES), default="python", show_default=True)
@click.option("-o", "folder", type=click.Path(path_type=Path), help="The folder to make; NAME if not given.")
def new_driver(name: str, language: str, folder: Path | None) -> None:
    """Write a package with a driver for a new device NAME, ready to install, its own tests included."""
    folder = folder or Path(name)
    for path in write_driver(name, folder, language):
        click.echo(path)
    click.echo(
        f"\nnext:\n  pip install {_local(folder)}\n  pytest {folder}\n"
        f"  nnadapter report {folder / 'example.onnx'} -d {name}\n  nnadapter run {folder / 'example.onnx'} -d {name}"
    )


def _local(folder: Path) -> str:
    """The folder as pip knows it for one."""
    return str(folder) if folder.is_absolute() or len(folder.parts) > 1 else f"./{folder}"
