"""Formats and their file names."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from nnadapter.cli import main
from nnadapter.report import FORMATS, formats_of


@pytest.mark.parametrize(
    ("path", "forms"),
    [("a/page.HTML", ("html",)), ("p.json", ("json", "model-explorer")), ("p.md", ("md",)), ("p", ()), ("p.zip", ())],
)  # fmt: skip
def test_file_extensions_select_formats(path, forms):
    assert formats_of(path) == forms


def test_what_if_formats_are_report_formats():
    refused = CliRunner().invoke(main, ["report", "m.onnx", "--what-if", "--format", "dot"])
    (names,) = re.findall(r"no format dot; use (.*)", refused.output)
    assert set(names.split(", ")) <= FORMATS.keys()
