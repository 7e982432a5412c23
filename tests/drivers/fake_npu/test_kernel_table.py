from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from nnadapter.drivers.fake_npu import kernels
from nnadapter.drivers.fake_npu.kernels import FAMILIES, KERNELS


def tables():
    names = sorted(path.stem for path in Path(kernels.__file__).parent.glob("*.py") if path.stem != "__init__")
    modules = {name: import_module(f"{kernels.__name__}.{name}") for name in names}
    return {name: module.KERNELS for name, module in modules.items() if hasattr(module, "KERNELS")}


def test_every_kernel_is_named_with_its_family():
    assert {family: sorted(names.split()) for family, names in FAMILIES.items()} == {
        family: sorted(table) for family, table in tables().items()
    }


def test_kernel_names_are_unique():
    names = [name for names in FAMILIES.values() for name in names.split()]
    assert len(names) == len(set(names))
    assert all(KERNELS[name] is tables()[family][name] for family in FAMILIES for name in FAMILIES[family].split())


def test_an_unknown_kernel_is_a_key_error():
    with pytest.raises(KeyError, match="levitate"):
        KERNELS["levitate"]


@pytest.mark.slow
def test_family_is_imported_when_a_kernel_is_requested():
    code = (
        "import sys\n"
        "from nnadapter.drivers.fake_npu.kernels import KERNELS\n"
        "KERNELS['softmax']\n"
        "print('numpy.fft' in sys.modules, 'nnadapter.drivers.fake_npu.kernels.normalization' in sys.modules)\n"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["False", "True"]
