"""Agreement of docs/reports.md with the code."""

from __future__ import annotations

import re
from pathlib import Path

import click

from nnadapter.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
REPORT = main.get_command(None, "report")


def test_documented_formats_equal_the_command():
    (option,) = [parameter for parameter in REPORT.params if parameter.name == "form"]
    assert isinstance(option.type, click.Choice)
    section = PAGE.split("## Formats")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w[\w-]*)`", section, re.MULTILINE) == list(option.type.choices)


def test_documented_gates_are_options_of_the_command():
    section = PAGE.split("## Gates")[1].split("##")[0]
    flags = {flag for parameter in REPORT.params for flag in parameter.opts}
    gates = re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)
    assert len(gates) == 3 and set(gates) <= flags


def test_picture_file_is_small():
    picture = Path(__file__).parents[2] / "docs" / "pictures" / "report.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 200_000
