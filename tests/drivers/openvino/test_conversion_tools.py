"""OpenVINO's model conversion tools, imported lazily."""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from nnadapter.drivers.openvino import engine, without_conversion_tools


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Yield a function that imports a stand-in of the package."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "openvino"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "openvino" / "tools").mkdir(parents=True)
    (tmp_path / "openvino" / "__init__.py").write_text(
        "try:\n    from openvino.tools.ovc import convert_model\nexcept ImportError:\n    pass\n"
    )
    (tmp_path / "openvino" / "tools" / "ovc.py").write_text("def convert_model(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: importlib.import_module("openvino")
    for name in ("openvino", "openvino.tools", "openvino.tools.ovc"):
        sys.modules.pop(name, None)


def test_tools_are_imported_on_use(package):
    with without_conversion_tools():
        imported = package()
    assert "openvino.tools.ovc" not in sys.modules
    assert not hasattr(imported, "convert_models")
    from openvino import convert_model

    assert convert_model is sys.modules["openvino.tools.ovc"].convert_model is vars(imported)["convert_model"]


def test_another_thread_imports_the_tools_normally(package):
    with without_conversion_tools(), ThreadPoolExecutor() as pool:
        assert "convert_model" in vars(pool.submit(package).result())


def test_other_finders_stay_during_the_import(package):
    with without_conversion_tools():
        finders = list(sys.meta_path)
        package()
    assert sys.meta_path == finders


def test_tools_can_be_imported_after_an_interrupt(package):
    package_of = without_conversion_tools()
    package_of.__enter__()  # never exited
    package()
    importlib.import_module("openvino.tools.ovc")


def test_failing_import_is_a_missing_attribute(package, tmp_path):
    (tmp_path / "openvino" / "tools" / "ovc.py").write_text("import no_such_package_of_anybody")
    with without_conversion_tools():
        imported = package()
    assert not hasattr(imported, "convert_model")


def test_installed_package_has_its_tools(monkeypatch):
    monkeypatch.setenv("CI", "true")  # disables OpenVINO's import telemetry
    assert engine.module().convert_model is importlib.import_module("openvino.tools.ovc").convert_model
