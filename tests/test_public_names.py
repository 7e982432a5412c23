from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import nnadapter as nna

ROOT = Path(__file__).parent.parent
ROOMS = ("nnadapter", "nnadapter.drivers", "nnadapter.ir", "partition")


@pytest.mark.parametrize("room", ROOMS)
def test_all_is_sorted_and_complete(room):
    module = importlib.import_module(room)
    names = list(module.__all__)
    assert len(set(names)) == len(names)
    assert sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name)) == names
    assert all(hasattr(module, name) for name in names)


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_are_documented(room):
    module = importlib.import_module(room)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{room}.{name} has no docstring"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nope"):
        getattr(nna, "nope")  # noqa: B009  tests the lookup


def test_version_is_known_without_installation():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import nnadapter; print(nnadapter.__version__)"
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]  # -S hides site-packages
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == nna.__version__


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, nnadapter; print(sorted({'numpy', 'onnx', 'onnxruntime', 'click', 'rich'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_errors_have_one_base_class():
    classes = [
        value
        for value in vars(nna.errors).values()
        if inspect.isclass(value) and value.__module__ == nna.errors.__name__
    ]
    errors = [value for value in classes if not issubclass(value, Warning)]
    assert all(issubclass(value, nna.errors.NNAdapterError) and value.__doc__ for value in errors)
    drawn = nna.errors.__doc__
    assert all(value.__name__ in drawn for value in classes if not value.__name__.startswith("_"))
