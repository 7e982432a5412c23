"""The public surface is the one in surface.txt, which `python -m tests.outside.surface` writes."""

from __future__ import annotations

import pytest

from tests.outside.surface import PATH, surface

_SECTIONS = surface()
_WRITTEN = dict(part.split("\n\n", 1) for part in PATH.read_text(encoding="utf-8")[2:].split("\n\n# "))


@pytest.mark.parametrize("title", _SECTIONS)
def test_the_surface_changes_only_with_its_file(title):
    assert _SECTIONS[title].splitlines() == _WRITTEN[title].splitlines()


def test_every_section_is_written():
    assert set(_SECTIONS) <= set(_WRITTEN)
