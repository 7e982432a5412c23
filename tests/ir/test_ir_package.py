from __future__ import annotations

import re
import subprocess
import sys

from nnadapter import ir


def test_all_is_sorted_and_true():
    assert ir.__all__ == sorted(ir.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(ir, name) for name in ir.__all__)


def test_glossary_is_short():
    terms = re.findall(r"^    (\S[^\n]*?)  +\S", ir.__doc__, re.MULTILINE)
    assert 15 <= len(terms) <= 30
    assert len(set(terms)) == len(terms)


def test_importing_the_ir_imports_no_onnx():
    code = "import sys, nnadapter.ir; print(sorted({'onnx', 'onnxruntime'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
