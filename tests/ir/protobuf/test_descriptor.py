from google.protobuf.descriptor_pb2 import FileDescriptorProto

from nnadapter.ir import AttributeKind
from nnadapter.ir.protobuf import DESCRIPTOR


def test_attributes_have_a_field_for_every_kind():
    messages = {message.name: message for message in FileDescriptorProto.FromString(DESCRIPTOR).message_type}
    assert [field.name for field in messages["Attribute"].field] == ["name", *map(str, AttributeKind)]


def test_field_numbers_are_stable():
    messages = FileDescriptorProto.FromString(DESCRIPTOR).message_type
    numbers = {message.name: {field.name: field.number for field in message.field} for message in messages}
    assert numbers == {
        "File": {"format": 1, "version": 2, "sha256": 3, "model": 4},
        "Model": {"operands": 1, "operations": 2, "inputs": 3, "outputs": 4},
        "Operand": {
            "name": 1,
            "data_type": 2,
            "dimensions": 3,
            "layout": 4,
            "quantization": 5,
            "lifetime": 6,
            "contents": 7,
        },
        "Quantization": {"scale": 1, "zero_point": 2, "axis": 3},
        "Reference": {"file": 1, "offset": 2, "length": 3, "sha256": 4},
        "Operation": {"type": 1, "inputs": 2, "outputs": 3, "attributes": 4, "origins": 5},
        "Attribute": {"name": 1, "bool": 2, "int": 3, "float": 4, "string": 5, "ints": 6, "floats": 7},
        "Ints": {"values": 1},
        "Floats": {"values": 1},
        "Signature": {"device": 1, "inputs": 2, "outputs": 3},
    }
