"""Make the descriptor.py of every .proto in nnadapter/; needs the package grpcio-tools.

    python docs/make_descriptor.py

The module that protoc itself makes runs with one or two major versions of protobuf. A descriptor runs with all of them.
"""

from __future__ import annotations

import tempfile
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
MODULES: Mapping[str, str] = {
    "nnadapter/engine/compiled_model.proto": "nnadapter/engine/descriptor.py",
    "nnadapter/store/container.proto": "nnadapter/store/container_descriptor.py",
    "nnadapter/ir/model.proto": "nnadapter/ir/protobuf/descriptor.py",
}
"""The module of every .proto."""
_TEXT = '''"""{proto} as protoc understands it. Made by docs/make_descriptor.py."""

from binascii import a2b_base64

DESCRIPTOR = a2b_base64(
    """
{lines}
"""
)
"""A serialized google.protobuf.FileDescriptorProto."""
'''


def descriptor(proto: str) -> bytes:
    """Return the descriptor of a .proto, without its comments."""
    source = ROOT / proto
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "one.binpb")
        arguments = ["protoc", f"-I{source.parent}", f"--descriptor_set_out={target}", source.name]
        if protoc.main(arguments):
            raise SystemExit(f"protoc does not take {proto}; it said why")
        (file,) = FileDescriptorSet.FromString(target.read_bytes()).file
    return file.SerializeToString(deterministic=True)


def module(proto: str) -> str:
    """Return the text of the module of a .proto."""
    return _TEXT.format(proto=proto, lines="\n".join(wrap(b64encode(descriptor(proto)).decode(), 100)))


if __name__ == "__main__":
    for proto, target in MODULES.items():
        (ROOT / target).write_text(module(proto), encoding="utf-8")
