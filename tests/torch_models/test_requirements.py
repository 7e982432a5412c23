from __future__ import annotations

import subprocess
import sys

import pytest

from nnadapter.errors import MissingExtraError
from nnadapter.torch.requirements import PACKAGES, require_torch


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that creates a distribution which precedes all others in the search path."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package, version):
        folder = tmp_path / f"{package}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")

    return install


def test_sufficient_versions_are_accepted(installed):
    installed("torch", "2.13.0+cpu")
    installed("onnxscript", "0.7.2")
    require_torch("a module as a model")


@pytest.mark.parametrize("package", PACKAGES)
def test_outdated_package_is_named_with_a_remedy(installed, package):
    for each in PACKAGES:
        installed(each, "0.4.1" if each == package else "99.0")
    with pytest.raises(MissingExtraError) as caught:
        require_torch("a module as a model")
    assert str(caught.value).startswith(f"a module as a model needs {package} ")
    assert str(caught.value).endswith(f"and {package} 0.4.1 is installed; run: pip install -U 'nnadapter[torch]'")
    assert (caught.value.extra, caught.value.package) == ("torch", package)


def test_missing_package_is_named():
    code = (
        "import sys; sys.meta_path[:] = [each for each in sys.meta_path if not hasattr(each, 'find_distributions')]\n"
        "from nnadapter.torch.requirements import require_torch\n"
        "require_torch('torch.compile')"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": ""}
    preloaded = "import nnadapter.torch.requirements\n" + code
    process = subprocess.run([sys.executable, "-c", preloaded], capture_output=True, text=True, env=environment)
    assert "MissingExtraError: torch.compile needs torch 2.13 or later, and it is not installed;" in process.stderr


def test_the_package_does_not_import_pytorch():
    code = "import sys, nnadapter, nnadapter.torch; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.sweep
def test_pytorch_without_needed_internals_is_an_error():
    code = (
        "import torch.fx.passes.operator_support as inside; del inside.create_op_support\n"
        "import nnadapter as nna, torch\n"
        "torch.compile(torch.relu, backend=nna.torch.nnadapter)(torch.ones(2))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = process.stderr.strip().splitlines()[-1]
    assert "MissingExtraError: torch.compile(backend='nnadapter') needs internals of torch 2.13 that torch 2." in said
    assert "create_op_support" in said and said.endswith("run: pip install 'torch==2.13.*'")
