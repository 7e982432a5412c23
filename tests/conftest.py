"""What many tests share: a driver installed through a real entry point, and small models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nnadapter.drivers import registry


@pytest.fixture(scope="session", autouse=True)
def trial_drivers(tmp_path_factory):
    """A distribution whose entry points name the drivers of trial_driver.py, two of one name among them."""
    site = tmp_path_factory.mktemp("site")
    _distribution(
        site,
        "trial",
        {
            "trial": "trial_driver:TrialDriver",
            "old": "trial_driver:OldDriver",
            "abstract": "trial_driver:AbstractDriver",
            "notadriver": "trial_driver:NotADriver",
            "missing": "trial_driver_that_is_not_there:Driver",
            "noclass": "trial_driver:NoSuchClass",
            "twice": "trial_driver:TrialDriver",
        },
    )
    _distribution(site, "rival", {"twice": "trial_driver:OldDriver", "cpu": "trial_driver:OldDriver"})
    sys.path.insert(0, str(site))
    registry.refresh()
    yield
    sys.path.remove(str(site))
    registry.refresh()


def _distribution(site: Path, name: str, points: dict[str, str]) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(f"{point} = {target}" for point, target in points.items())
    (folder / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{lines}\n")
