"""Agreement of the C header with the loader's table."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import nnadapter as nna
from nnadapter.drivers.native import (
    CLASSES,
    CODED_VERSION,
    FUNCTIONS,
    GROUPS,
    REQUIRED,
    STRUCTURES,
    UNIONS,
    c_interface,
)
from tests.c_compiler import compile_c, needs_compiler
from tests.every import for_every

HEADER = Path(nna.get_include()) / "nnadapter_driver.h"
TEXT = HEADER.read_text(encoding="utf-8")


def program(lines):
    head = ("#include <stdio.h>", "#include <nnadapter_driver.h>", "int main(void) {")
    return "\n".join((*head, *lines, "return 0; }", ""))


def printed(folder, lines):
    source = folder / "print.c"
    source.write_text(program(lines))
    completed = subprocess.run([compile_c(folder / "print", source)], capture_output=True, text=True, check=True)
    return [tuple(map(int, line.split())) for line in completed.stdout.splitlines()]


@needs_compiler
def test_offsets_of_members_equal_c(tmp_path):
    members = [(name, member) for name, fields in STRUCTURES.items() for member, _ in fields]
    lines = [
        f'printf("%zu %zu %zu\\n", sizeof(NNAdapter{name}), offsetof(NNAdapter{name}, {member}), '
        f"sizeof(((NNAdapter{name} *)0)->{member}));"
        for name, member in members
    ]
    ours = [
        (ctypes.sizeof(CLASSES[name]), getattr(CLASSES[name], member).offset, getattr(CLASSES[name], member).size)
        for name, member in members
    ]
    assert printed(tmp_path, lines) == ours


@needs_compiler
def test_codes_equal_the_header(tmp_path):
    named = [
        *c_interface.Status,
        *c_interface.AttributeCode,
        *c_interface.DATA_TYPES.items(),
        *c_interface.LAYOUTS.items(),
        *c_interface.LIFETIMES.items(),
    ]
    pairs = [(entry.name, entry) if not isinstance(entry, tuple) else (entry[0].name, entry[1]) for entry in named]
    for table in (c_interface.DEVICE_TYPES, c_interface.THREADINGS, c_interface.REASONS, c_interface.COMPATIBILITIES):
        pairs += [(entry.name, code) for code, entry in table.items()]
    printed_codes = printed(tmp_path, [f'printf("%d\\n", (int)NNADAPTER_{name});' for name, _ in pairs])
    assert printed_codes == [(int(code),) for _, code in pairs]
    assert printed(tmp_path, ['printf("%u\\n", NNADAPTER_VERSION);']) == [(CODED_VERSION,)]


@needs_compiler
@pytest.mark.parametrize("standard", ["c11", "c17"])
def test_header_compiles_as_pedantic_c(tmp_path, standard):
    source = tmp_path / "only.c"
    source.write_text(program([]))
    compile_c(tmp_path / "only", f"-std={standard}", "-pedantic", source)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler: no g++")
def test_header_compiles_as_cpp(tmp_path):
    source = tmp_path / "only.cc"
    source.write_text("#include <nnadapter_driver.h>\nNNAdapterModel model = {};\n")
    command = ["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", f"-I{nna.get_include()}", "-fsyntax-only", source]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""


def test_the_table_has_every_member_of_the_header():
    bodies = dict(re.findall(r"typedef struct NNAdapter(\w+) \{(.*?)^\} NNAdapter", TEXT, re.MULTILINE | re.DOTALL))
    assert bodies.keys() == STRUCTURES.keys()
    for name, body in bodies.items():
        body = re.sub(r"/\*.*?\*/|union \{.*?\}", "", body, flags=re.DOTALL)
        for member in re.findall(r"\(\*(\w+)\)\([^;]*;", body):
            body = re.sub(rf"[^;]*\(\*{member}\)\([^;]*;", f" void {member};", body, count=1)
        parts = [part for line in body.split(";") if line.strip() for part in line.split(",")]
        declared = [re.findall(r"\w+", part)[-1] for part in parts]
        assert declared == [member for member, _ in STRUCTURES[name]], name


def test_every_structure_starts_with_size_and_version():
    assert all(members[:2] == (("size", "u32"), ("version", "u32")) for members in STRUCTURES.values())


def test_functions_have_signatures():
    groups = {name for structure in GROUPS.values() for name, _ in STRUCTURES[structure][2:]}
    assert groups < FUNCTIONS.keys() and set(REQUIRED) < FUNCTIONS.keys()
    union = re.search(r"union \{(.*?)\}", TEXT, re.DOTALL)[1]
    assert [name for name, _ in UNIONS["AttributeValue"]] == re.findall(r"(\w+);", union)


@for_every(name=sorted(FUNCTIONS))
def test_parameter_counts_equal_the_header(name):
    match = re.search(rf"(?:\(\*{name}\)|\*{name})\(([^;]*)\);", TEXT)
    assert len(match[1].split(",")) == len(FUNCTIONS[name]) - 1
