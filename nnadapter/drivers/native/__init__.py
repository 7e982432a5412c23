"""Drivers in shared libraries with the C interface of `nnadapter/include/nnadapter_driver.h`."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".c_interface": (
            "AttributeCode CLASSES CODED_VERSION DATA_TYPES FUNCTIONS Functions GROUPS Holder REQUIRED SIGNATURES "
            "STRUCTURES Status UNIONS make missing_bytes read read_pointers"
        ),
        ".driver": "NativeDriver",
        ".models": "ModelTemplates NumberedSizes OPEN aligned build",
        ".requests": "DeviceMemory DynamicSignatures seal unseal",
    },
)
