"""Files that say that they are larger than they are, and external data that leads elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from onnx import TensorProto

from benchmarks.hostile import Made, X, graph, model, node
from nnadapter.onnx.wire_format import varint_bytes

_DEEP = 1000


def _headers_of_two_gigabytes(folder: Path) -> Made:
    """A sparse file: a graph that says it has 2 GiB, and has them, all zeros."""
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
