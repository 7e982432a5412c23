"""Files of ours that strangers wrote: rules, plans, adapter IR, compiled models; and what commands say of models."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path

import nnadapter as nna
from benchmarks.hostile import tagged
from nnadapter.cli import main
from nnadapter.files.source_kind import MAGIC
from nnadapter.ir import protobuf
from nnadapter.plan_files.reading import read_plan
from nnadapter.reports.reading import read_report
from nnadapter.rules import read_rules

_DEEP = 100_000
_ENDINGS = {"rules": ".toml", "ir": ".nnir", "commands": ".onnx"}


def _rules(path: Path) -> str:
    return str(len([*read_rules(path)])) + " rules"


def _commands(path: Path) -> str:
    """Every command that reads a model, by its exit codes."""
    out, codes = path.with_suffix(".out"), {}
    for command in (
        ["report", path, "-d", "fake_npu"],
        ["run", path, "-d", "fake_npu"],
        ["compile", path, "-d", "fake_npu", "-o", out],
        ["compare", path, "-d", "fake_npu"],
        ["export", path, "-o", out],
    ):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                main([*map(str, command)])
            except SystemExit as ended:
                codes[command[0]] = ended.code
        if "Traceback" in said.getvalue():
            raise AssertionError(f"{command[0]} printed a traceback")
    return "exit " + ", ".join(f"{code} of {command}" for command, code in codes.items())


def _session(path: Path) -> str:
    with nna.InferenceSession(path) as session:
        return f"loaded, {len(session.get_inputs())} inputs"


_READERS: Mapping[str, Callable[[Path], str]] = {
    "rules": _rules,
    "plan": lambda path: str(read_plan(path)),
    "report": lambda path: str(read_report(path)),
    "ir": lambda path: str(protobuf.load(path)),
    "compiled": _session,
    "commands": _commands,
}
TEXTS: Mapping[str, tuple[str, bytes]] = {
    "rules: arrays 100,000 deep": ("rules", b"a = " + b"[" * _DEEP + b"]" * _DEEP),
    "rules: tables 100,000 deep": ("rules", b"[" + b"a." * _DEEP + b"a]\n"),
    "rules: a key of 10 MB": ("rules", b"a" * 10_000_000 + b" = 1"),
    "rules: a name of 10 MB": ("rules", b'[[pin]]\ndevice = "cpu"\nname = "' + b"*a" * 5_000_000 + b'"\n'),
    "rules: 100,000 pins": ("rules", b'[[pin]]\ndevice = "cpu"\nop_type = "Erf"\n' * 100_000),
    "rules: a number of a million digits": ("rules", b"[limits]\nmax_segments = " + b"9" * 1_000_000),
    "rules: no UTF-8": ("rules", b"\xff\xfe\x00"),
    "plan: arrays 100,000 deep": ("plan", b"[" * _DEEP + b"]" * _DEEP),
    "plan: a number of a million digits": ("plan", b'{"a": ' + b"9" * 1_000_000 + b"}"),
    "plan: NaN": ("plan", b'{"version": NaN}'),
    "plan: a text of 50 MB": ("plan", b'"' + b"a" * 50_000_000 + b'"'),
    "report: arrays 100,000 deep": ("report", b"[" * _DEEP + b"]" * _DEEP),
    "adapter IR: 30 MB of empty fields": ("ir", b"\x1a\x00" * 15_000_000),
    "adapter IR: messages 10,000 deep": ("ir", b"\x1a\x7f" * 10_000),
    "adapter IR: nothing": ("ir", b""),
    "a compiled model: zeros behind its mark": ("compiled", MAGIC + bytes(10_000_000)),
    "commands: nothing": ("commands", b""),
    "commands: zeros": ("commands", bytes(1_000_000)),
    "commands: a text": ("commands", b"hello\n" * 100),
    "commands: a graph 1,000 deep": ("commands", b"\x08\x08" + tagged(7, b"\x0a\x7f" * 1000)),
}
"""A person's name for each, who reads it, and what it holds."""


def read(kind: str, contents: bytes, folder: Path) -> str:
    """Have a file read; what came of it."""
    path = folder / f"hostile{_ENDINGS.get(kind, '.json')}"
    path.write_bytes(contents)
    return _READERS[kind](path)[:100]
