"""Shared fixtures: drivers behave as installed packages, and really installed ones are hidden."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from nnadapter.costs import Stopwatch, calibrate, contents_of, read_calibration, write_stored
from nnadapter.drivers import registry
from nnadapter.drivers.onnxruntime import CpuContext
from tests import optional
from tests.c_compiler import COMPILER, acme_among_devices
from tests.installed import hide, hide_from_children
from tests.made_once import VARIABLE as OPERATOR_TESTS
from tests.made_once import make_once

VARIABLES = tuple(f"NNADAPTER_{name}" for name in ("CACHE_DIR", "DEVICES", "DRIVER_PATH", "FAULTS", "ISOLATE", "LOG"))
"""Environment variables that nnadapter reads."""
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Thread counts of PyTorch, scikit-learn and numpy; a test may set another."""
LONG = ("fuzz", "sweep")
"""Markers of long forms, which run only if `-m` names them."""
_CASES, _SLOW_CASES = 2, 1
"""Cases of each test, and of each slow test, in a run without a path."""

settings.register_profile("anew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("many", settings.get_profile("anew"), max_examples=500)
settings.register_profile("few", settings.get_profile("anew"), derandomize=True, max_examples=20)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nnadapter")
    group.addoption("--slow", action="store_true", help="run tests that are marked slow, too")
    group.addoption("--all-cases", action="store_true", help="run all cases of long tables of the whole suite")
    group.addoption("--folder-times", action="store_true", help="print the seconds of tests by folder")


def pytest_configure(config: pytest.Config) -> None:
    """Select hypothesis examples: random ones for long forms, otherwise few and deterministic."""
    is_long = any(name in config.option.markexpr for name in LONG)
    settings.load_profile("many" if "hypothesis" in config.option.markexpr else "anew" if is_long else "few")
    config.pluginmanager.register(optional)
    make_once()
    # Otherwise a package that sets up logging would do it for the whole process.
    logging.getLogger().addHandler(logging.NullHandler())
    for pool in POOLS:  # workers share the processors, and busy-waiting threads would slow other workers
        os.environ.setdefault(pool, "1")
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        _keep_bytecode(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """Send the worker whether to sample tables; its arguments do not show whether a path was passed."""
    node.workerinput["sampled"] = _is_sampled(node.config)


def _is_sampled(config: pytest.Config) -> bool:
    """Return whether each test runs a sample of its cases: without a path, marker or `--all-cases`."""
    if hasattr(config, "workerinput"):
        return config.workerinput["sampled"]
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return is_whole and not config.option.all_cases and not config.option.markexpr


def _keep_bytecode(config: pytest.Config) -> None:
    """Share bytecode in a temporary folder where writing it next to sources is off: many processes import the same."""
    folder = tempfile.mkdtemp(prefix="bytecode-")
    os.environ["PYTHONPYCACHEPREFIX"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reset PyTorch's random numbers, so that a test does not depend on earlier tests of its worker."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)  # only the CPU's generator: asking for the others is slow


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(report: pytest.TestReport):
    """Shrink reports of passed tests, whose transfer from workers takes longer than many a test."""
    said = yield
    if said is not None and getattr(report, "passed", False):
        said["keywords"] = {}
    return said


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session):
    """Collect tests without the garbage collector: imported objects are permanent, and PyTorch makes millions."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 10, 30)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None):
    """Collect garbage once per test file, not in every test that fills the heap."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long forms, unless `-m` names them, and slow tests without `-m` or `--slow`; sort slow files first.

    Without a path, run a sample of each test's cases. A file whose tests share fixtures stays with one worker.
    """
    left_out = [name for name in LONG if name not in config.option.markexpr]
    if not config.option.slow and not config.option.markexpr:
        left_out.append("slow")
    deselected = {item for item in items if any(map(item.get_closest_marker, left_out))}
    if _is_sampled(config):
        deselected |= _beyond_samples([item for item in items if item not in deselected])
    if deselected:
        config.hook.pytest_deselected(items=list(deselected))
        items[:] = [item for item in items if item not in deselected]
    optional.skip_for_devices(items)
    first = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in first)


def _beyond_samples(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cases to leave out: all but `_SLOW_CASES` of a slow test and `_CASES` of others, by checksum."""
    tables = defaultdict(list)
    for item in items:
        tables[item.nodeid.partition("[")[0], item.get_closest_marker("slow") is not None].append(item)
    beyond = set()
    for (_, is_slow), cases in tables.items():
        cases.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        beyond.update(cases[_SLOW_CASES if is_slow else _CASES :])
    return beyond


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Print seconds per folder, summed over all workers, if `--folder-times` asks for them."""
    if not config.option.folder_times:
        return
    seconds = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if hasattr(report, "duration"):
            parts = report.nodeid.partition("::")[0].split("/")
            seconds["/".join(parts[: 3 if "drivers" in parts else 2])] += report.duration
    terminalreporter.section("seconds by folder")
    for folder, total in seconds.most_common():
        terminalreporter.write_line(f"{total:8.1f}  {folder}")


@pytest.fixture(scope="session", autouse=True)
def nothing_installed(tmp_path_factory):
    """Hide installed extensions and environment variables of the user, in child processes too."""
    before = sorted({str(Path(entry or ".").resolve()) for entry in sys.path})
    children = tmp_path_factory.mktemp("children")
    hide_from_children(children, before)
    with pytest.MonkeyPatch.context() as patch:
        for variable in VARIABLES:
            patch.delenv(variable, raising=False)
        patch.setenv("PYTHONPATH", str(children), prepend=os.pathsep)
        patch.syspath_prepend(children)
        finders = hide(before)
        yield
        sys.meta_path[:] = finders


@pytest.fixture(scope="session", autouse=True)
def trial_drivers(nothing_installed, tmp_path_factory):
    """Install a distribution whose entry points name the drivers of trial_driver.py, two with the same name."""
    site = tmp_path_factory.mktemp("site")
    _distribution(
        site,
        "trial",
        {
            "trial": "tests.trial_driver:TrialDriver",
            "metered": "tests.metered_driver:MeteredDriver",
            "rounding": "tests.rounding_driver:RoundingDriver",
            "lying": "tests.lying_driver:LyingDriver",
            "drifting": "tests.drifting_driver:DriftingDriver",
            "planted": "tests.planted_driver:PlantedDriver",
            "residing": "tests.residing_driver:ResidingDriver",
            "onnxform": "tests.onnx_form_driver:OnnxFormDriver",
            "opensizes": "tests.open_sizes_driver:OpenSizesDriver",
            "openir": "tests.open_ir_driver:OpenIrDriver",
            "opentable": "tests.table_driver:OpenTableDriver",
            "bounded": "tests.bounded_driver:BoundedDriver",
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


@pytest.fixture
def interruptible():
    """Restore Ctrl-C handling: a suite in the background of a shell ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def acme(tmp_path_factory):
    """Add the compiled acme_c to the devices."""
    if COMPILER is None:
        pytest.skip("there is no C compiler: none of cc, gcc and clang")
    with acme_among_devices(tmp_path_factory.mktemp("acme")):
        yield


def _distribution(site: Path, name: str, points: dict[str, str]) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(f"{point} = {target}" for point, target in points.items())
    (folder / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{lines}\n")


@pytest.fixture(scope="session", autouse=True)
def empty_cache(tmp_path_factory):
    """Redirect stored calibrations and choices to an empty folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def folder_of_all_workers(tmp_path_factory):
    """Return a folder that all workers share for results that take seconds to make."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def onnx_cases(folder_of_all_workers):
    """Have the first process that needs onnx's operator tests generate them for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OPERATOR_TESTS, str(folder_of_all_workers / "operator_tests"))
        yield


@pytest.fixture(scope="session")
def of_the_cpu(folder_of_all_workers):
    """Return a minimal calibration of the CPU, measured by the first worker that needs it."""
    kept = folder_of_all_workers / "calibration_of_the_cpu.json"
    if kept.exists():
        return read_calibration(kept)
    with pytest.MonkeyPatch.context() as patch:
        # Spinning threads would take 10 seconds.
        patch.setattr(CpuContext, "compile_whole_graph", CpuContext.compile)
        made = calibrate("cpu", budget_seconds=0.0, stopwatch=Stopwatch(sleep=lambda _: None, turn_seconds=0.0))
    write_stored(kept, contents_of(made))
    return made
