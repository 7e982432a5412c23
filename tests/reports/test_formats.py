"""Formats and the names of their files."""

from __future__ import annotations

import pytest

from nnadapter.reports.report import FORMATS, formats_of
from nnadapter.whatif.report import RENDERERS as OF_WHAT_IF


@pytest.mark.parametrize(
    ("path", "forms"),
    [("a/page.HTML", ("html",)), ("p.json", ("json", "model-explorer")), ("p.md", ("md",)), ("p", ()), ("p.zip", ())],
)  # fmt: skip
def test_names_of_files_stand_for_formats(path, forms):
    assert formats_of(path) == forms


def test_what_if_has_formats_of_reports():
    assert OF_WHAT_IF.keys() <= FORMATS.keys()
