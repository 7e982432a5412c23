import subprocess
import sys
from importlib import import_module
from types import ModuleType

import partition


def test_all_lists_every_public_name():
    assert set(partition.__all__) == partition._HOMES.keys()
    for name, home in partition._HOMES.items():
        assert getattr(partition, name) is getattr(import_module(home), name)
    public = {name for name, value in vars(partition).items() if name[0] != "_" and not isinstance(value, ModuleType)}
    assert public - {"Any", "TYPE_CHECKING", "annotations"} == set(partition.__all__)


def test_importing_the_package_imports_neither_onnx_nor_nnadapter():
    code = "import partition, sys; sys.exit(any(name in sys.modules for name in ('onnx', 'nnadapter', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
