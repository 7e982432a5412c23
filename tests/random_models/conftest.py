"""The long form runs only for those who ask for it."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `fuzz`, unless `-m` names it."""
    if "fuzz" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("fuzz")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("fuzz")]
