"""Isolation of cost tests: a temporary cache folder, and a reset of the metered device."""

from __future__ import annotations

import pytest

from tests import metered_driver


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "cache"))
    metered_driver.STATE.update(metered_driver.NEW)
    yield tmp_path / "cache"
    metered_driver.STATE.update(metered_driver.NEW)
