"""Agreement of the message classes with the .proto files."""

import importlib.util
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

ROOT = Path(__file__).parent.parent
PROTOS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "nnadapter").rglob("*.proto"))


@pytest.mark.parametrize("proto", PROTOS)
def test_descriptor_equals_the_proto_file(proto):
    pytest.importorskip("grpc_tools")
    maker = _loaded("docs/make_descriptor.py")
    made, kept = maker.descriptor(proto), _loaded(maker.MODULES[proto]).DESCRIPTOR
    assert FileDescriptorProto.FromString(made) == FileDescriptorProto.FromString(kept), (
        "run: python docs/make_descriptor.py"
    )


def _loaded(path):
    spec = importlib.util.spec_from_file_location("loaded", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
