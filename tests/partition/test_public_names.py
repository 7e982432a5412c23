import subprocess
import sys
from types import ModuleType

import partition


def test_all_is_what_is_there():
    public = {name for name, value in vars(partition).items() if name[0] != "_" and not isinstance(value, ModuleType)}
    assert set(partition.__all__) == public


def test_importing_the_package_imports_neither_onnx_nor_nnadapter():
    code = "import partition, sys; sys.exit(any(name in sys.modules for name in ('onnx', 'nnadapter', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
