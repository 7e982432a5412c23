"""What many tests share: drivers through real entry points, and none of those that a person installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from nnadapter.drivers import registry
from tests.c_compiler import COMPILER, compile_acme
from tests.installed import hide, hide_from_children

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

LONG = ("fuzz", "sweep")
"""Markers of long forms, which run only for those who ask for them by `-m`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked so, unless `-m` names the marker."""
    unasked = [name for name in LONG if name not in config.option.markexpr]
    long = [item for item in items if any(map(item.get_closest_marker, unasked))]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not any(map(item.get_closest_marker, unasked))]


@pytest.fixture(scope="session", autouse=True)
def nothing_installed(tmp_path_factory):
    """Neither what is installed beside the suite nor a person's environment variables are seen, by children neither."""
    before = sorted({str(Path(entry or ".").resolve()) for entry in sys.path})
    children = tmp_path_factory.mktemp("children")
    hide_from_children(children, before)
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("NNADAPTER_DRIVER_PATH", "NNADAPTER_DEVICES"):
            patch.delenv(variable, raising=False)
        patch.setenv("PYTHONPATH", str(children), prepend=os.pathsep)
        patch.syspath_prepend(children)
        finders = hide(before)
        yield
        sys.meta_path[:] = finders


@pytest.fixture(scope="session", autouse=True)
def trial_drivers(nothing_installed, tmp_path_factory):
    """A distribution whose entry points name the drivers of trial_driver.py, two of one name among them."""
    site = tmp_path_factory.mktemp("site")
    _distribution(
        site,
        "trial",
        {
            "trial": "tests.trial_driver:TrialDriver",
            "metered": "tests.metered_driver:MeteredDriver",
            "lying": "tests.lying_driver:LyingDriver",
            "planted": "tests.planted_driver:PlantedDriver",
            "residing": "tests.residing_driver:ResidingDriver",
            "onnxform": "tests.onnx_form_driver:OnnxFormDriver",
            "opensizes": "tests.open_sizes_driver:OpenSizesDriver",
            "openir": "tests.open_ir_driver:OpenIrDriver",
            "keeping": "tests.keeping_driver:KeepingDriver",
            "latency": "tests.latency_driver:LatencyDriver",
            "old": "tests.trial_driver:OldDriver",
            "abstract": "tests.trial_driver:AbstractDriver",
            "notadriver": "tests.trial_driver:NotADriver",
            "missing": "tests.trial_driver_that_is_not_there:Driver",
            "noclass": "tests.trial_driver:NoSuchClass",
            "twice": "tests.trial_driver:TrialDriver",
        },
    )
    _distribution(site, "rival", {"twice": "tests.trial_driver:OldDriver", "cpu": "tests.trial_driver:OldDriver"})
    sys.path.insert(0, str(site))
    registry.refresh()
    yield
    sys.path.remove(str(site))
    registry.refresh()


@pytest.fixture(scope="module")
def acme(tmp_path_factory):
    """acme_c, compiled, is among the devices."""
    if COMPILER is None:
        pytest.skip("there is no C compiler: none of cc, gcc and clang")
    folder = compile_acme(tmp_path_factory.mktemp("acme")).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNADAPTER_DRIVER_PATH", str(folder))
        registry.refresh()
        yield
    registry.refresh()


def _distribution(site: Path, name: str, points: dict[str, str]) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(f"{point} = {target}" for point, target in points.items())
    (folder / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{lines}\n")


@pytest.fixture(scope="session", autouse=True)
def empty_cache(tmp_path_factory):
    """Nothing is kept where a person keeps calibrations and choices, and nothing of that is found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
