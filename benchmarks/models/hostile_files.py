"""Hostile files and feeds: wrong lengths, external data outside the folder, forged rules, plans and compiled files."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Never

import numpy as np
from numpy.lib.stride_tricks import as_strided
from onnx import TensorProto

import nnadapter as nna
from benchmarks.models.hostile_models import HUGE, Made, X, graph, model, node, tagged
from nnadapter.cli import main
from nnadapter.files.source_kind import MAGIC
from nnadapter.ir import protobuf
from nnadapter.onnx import varint_bytes
from nnadapter.planning import read_plan
from nnadapter.report import read_report
from nnadapter.rules import read_rules


def _headers_of_two_gigabytes(folder: Path) -> Made:
    """Return a sparse file with a graph of 2 GiB, all zeros."""
    path = folder / "headers.onnx"
    with path.open("wb") as file:
        file.write(b"\x08\x08" + varint_bytes(7 << 3 | 2) + varint_bytes(2**31 - 100))
        file.truncate(2**31)
    return path, X


def _sixteen_gigabytes(folder: Path) -> Made:
    path = folder / "sixteen.onnx"
    with path.open("wb") as file:
        file.write(b"\x08\x08")
        file.truncate(2**34)
    return path, X


def _external(
    location: str, folder: Path, offset: str = "0", length: str | None = None, dims: Sequence[int] = (2, 3)
) -> Made:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    inside = folder / "models"
    inside.mkdir(exist_ok=True)
    (folder / "secret.bin").write_bytes(bytes(1 << 20))
    (inside / "weights.bin").write_bytes(bytes(1 << 20))
    link = inside / "link.bin"
    if not link.exists():
        link.symlink_to(folder / "secret.bin")
        (inside / "linked").symlink_to(folder)
        (inside / "null").symlink_to("/dev/zero")
    (inside / "model.onnx").write_bytes(model(graph([node("Add", "x w")], weights=[tensor])).SerializeToString())
    return inside / "model.onnx", X


FILES: Mapping[str, Callable[[Path], Made]] = {
    "headers of 2 GiB": _headers_of_two_gigabytes,
    "a file of 16 GiB": _sixteen_gigabytes,
    "external data ../secret.bin": partial(_external, "../secret.bin"),
    "external data by a link": partial(_external, "link.bin"),
    "external data behind a linked folder": partial(_external, "linked/secret.bin"),
    "external data that is a device": partial(_external, "null"),
    "external data /etc/passwd": partial(_external, "/etc/passwd"),
    "external data with a negative offset": lambda folder: _external("weights.bin", folder, "-4"),
    "external data of 2**62 bytes": lambda folder: _external("weights.bin", folder, "0", str(2**62), (2**60,)),
    "external data at 10**5000": lambda folder: _external("weights.bin", folder, "9" * 5000),
    "external data with a length of its own": lambda folder: _external("weights.bin", folder, "0", "8"),
}


_X = np.ones((2, 3), np.float32)


class _Subclass(np.ndarray):
    """A subclass of arrays."""


class _Raising:
    def __array__(self, *_: Any, **__: Any) -> Never:
        raise RuntimeError("no array")


class _Endless:
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, _: int) -> float:
        return 1.0


FEEDS: Mapping[str, Callable[[], Any]] = {
    "objects": lambda: {"x": np.full((1000, 3), None, object)},
    "texts": lambda: {"x": np.array([["a", "b", "c"]])},
    "bytes": lambda: {"x": np.array([[b"a", b"b", b"c"]])},
    "another byte order": lambda: {"x": _X.astype(">f4")},
    "backwards": lambda: {"x": _X[::-1, ::-1]},
    "columns first": lambda: {"x": np.asfortranarray(_X)},
    "elements that overlap": lambda: {"x": as_strided(np.ones(30, np.float32), (9, 3), (4, 4))},
    "nothing": lambda: {"x": np.ones((0, 3), np.float32)},
    "a view of one as 2**40": lambda: {"x": np.broadcast_to(np.float32(1), (HUGE, 3))},
    "strides of 0": lambda: {"x": as_strided(_X, (2**38, 3), (0, 0))},
    "a subclass": lambda: {"x": _X.view(_Subclass)},
    "a masked array": lambda: {"x": np.ma.masked_array(_X, _X > 0)},
    "an address that is not aligned": lambda: {"x": np.frombuffer(b"\0" * 25, np.float32, 6, 1).reshape(2, 3)},
    "32 axes": lambda: {"x": np.ones((1,) * 32, np.float32)},
    "records": lambda: {"x": np.zeros((2, 3), [("a", "f4")])},
    "complex numbers": lambda: {"x": _X.astype(complex)},
    "None": lambda: {"x": None},
    "a ragged list": lambda: {"x": [[1, [2], 3]]},
    "what raises": lambda: {"x": _Raising()},
    "a list without end": lambda: {"x": _Endless()},
    "names that are no texts": lambda: {b"x": _X, 1: _X},
    "a name of 10 MB": lambda: {"n" * 10_000_000: _X},
    "a list in place of a dictionary": lambda: [_X],
}
"""Name -> the maker of the feed."""


_DEEP = 100_000
_ENDINGS = {"rules": ".toml", "ir": ".nnir", "commands": ".onnx"}


def _rules(path: Path) -> str:
    return str(len([*read_rules(path)])) + " rules"


def _commands(path: Path) -> str:
    """Run every command that reads a model, and return the exit codes."""
    out, codes = path.with_suffix(".out"), {}
    for command in (
        ["report", path, "-d", "fake_npu"],
        ["run", path, "-d", "fake_npu"],
        ["compile", path, "-d", "fake_npu", "-o", out],
        ["compare", path, "-d", "fake_npu"],
        ["export", path, "-o", out],
    ):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                main([*map(str, command)])
            except SystemExit as ended:
                codes[command[0]] = ended.code
        if "Traceback" in output.getvalue():
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
"""Name -> the reader of the file, and its contents."""


def read(kind: str, contents: bytes, folder: Path) -> str:
    """Read a file, and return the outcome."""
    path = folder / f"hostile{_ENDINGS.get(kind, '.json')}"
    path.write_bytes(contents)
    return _READERS[kind](path)[:100]
