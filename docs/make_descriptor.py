"""Make nnadapter/ir/protobuf/descriptor.py from nnadapter/ir/model.proto; needs the package grpcio-tools.

    python docs/make_descriptor.py

The module that protoc itself makes runs with one or two major versions of protobuf. A descriptor runs with all of them.
"""

from __future__ import annotations

import tempfile
from base64 import b64encode
from pathlib import Path
from textwrap import wrap

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

FOLDER = Path(__file__).parent.parent / "nnadapter" / "ir"
TARGET = FOLDER / "protobuf" / "descriptor.py"
_TEXT = '''"""nnadapter/ir/model.proto as protoc understands it. Made by docs/make_descriptor.py; change the .proto."""

from base64 import b64decode

DESCRIPTOR = b64decode(
    """
{lines}
"""
)
"""A serialized google.protobuf.FileDescriptorProto."""
'''


def descriptor() -> bytes:
    """Return the descriptor of model.proto, without its comments."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "model.binpb")
        arguments = ["protoc", f"-I{FOLDER}", f"--descriptor_set_out={target}", "model.proto"]
        if protoc.main(arguments):
            raise SystemExit("protoc does not take model.proto; it said why")
        (file,) = FileDescriptorSet.FromString(target.read_bytes()).file
    return file.SerializeToString(deterministic=True)


def module() -> str:
    """Return the text of the module."""
    return _TEXT.format(lines="\n".join(wrap(b64encode(descriptor()).decode(), 100)))


if __name__ == "__main__":
    TARGET.write_text(module(), encoding="utf-8")
