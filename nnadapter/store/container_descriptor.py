"""nnadapter/store/container.proto as protoc understands it. Made by docs/make_descriptor.py."""

from binascii import a2b_base64

DESCRIPTOR = a2b_base64(
    """
Cg9jb250YWluZXIucHJvdG8SE25uYWRhcHRlci5jb250YWluZXIiOAoFVGFibGUSLwoFcGFydHMYASADKAsyGS5ubmFkYXB0ZXIu
Y29udGFpbmVyLlBhcnRSBXBhcnRzIngKBFBhcnQSEgoEa2luZBgBIAEoCVIEa2luZBIWCgZvZmZzZXQYAiABKARSBm9mZnNldBIW
CgZsZW5ndGgYAyABKARSBmxlbmd0aBIUCgVjcmMzMhgEIAEoB1IFY3JjMzISFgoGc2hhMjU2GAUgASgMUgZzaGEyNTZiBnByb3Rv
Mw==
"""
)
"""A serialized google.protobuf.FileDescriptorProto."""
