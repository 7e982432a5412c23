from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys

import pytest

from nnadapter import drivers, ir


def test_all_is_sorted_and_names_exist():
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


_NAMES = ("Attribute", "Model", "Operand", "OperandType", "Operation", "OperationSchema", "Role")


@pytest.mark.parametrize("value", [drivers.Capability, *(getattr(ir, name) for name in _NAMES)])
def test_help_describes_every_field(value):
    text = inspect.getdoc(value)
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    assert [field for field in fields if f"\n    {field}: " not in text] == []
