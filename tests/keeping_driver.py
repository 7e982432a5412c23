"""A test driver with serializable programs, correct unless a fault of serialization is set."""

from __future__ import annotations

import sys
from hashlib import sha256

from nnadapter.drivers import (
    SUPPORTED,
    Capability,
    Compatibility,
    Context,
    Device,
    Driver,
    Execution,
    ModelForm,
    Program,
)
from nnadapter.errors import IncompatibleProgramError
from nnadapter.ir.definition import by_definition
from nnadapter.ir.protobuf import from_bytes, to_bytes

FAULTS: set[str] = set()
"""Active faults."""
ASKED: list[str] = []
"""Serialization calls, in order."""
_DIGEST_BYTES = 32


def fail(fault):
    if fault in FAULTS:
        raise KeyError("no such thing")


class KeepingExecution(Execution):
    def __init__(self, model):
        self.model = model

    def compute(self, inputs):
        fail("compute raises")
        return by_definition(self.model, inputs)


class KeepingProgram(Program):
    def __init__(self, model, memory_bytes=0):
        self.model, self._memory_bytes = model, memory_bytes

    @property
    def memory_bytes(self):
        return self._memory_bytes

    def create_execution(self):
        return KeepingExecution(self.model)

    def serialize(self):
        ASKED.append("serialize")
        fail("serialize raises")
        if "serialize gives a word" in FAULTS:
            return "bytes"
        parts = to_bytes(self.model)
        contents = len(parts[0]).to_bytes(8, "little") + parts[0] + parts[1]
        return sha256(contents).digest() + contents


class KeepingContext(Context):
    def supported(self, model):
        return [SUPPORTED] * len(model.operations)

    def compile(self, model):
        ASKED.append("compile")
        return KeepingProgram(model)

    def check_blob(self, blob):
        ASKED.append("check_blob")
        fail("check_blob raises")
        if "check_blob exits" in FAULTS:
            sys.exit(3)
        for word, said in (("a word", "same"), ("a number", 7), ("a class", Compatibility)):
            if f"check_blob gives {word}" in FAULTS:
                return said
        return None

    def deserialize(self, blob):
        ASKED.append("deserialize")
        fail("deserialize raises")
        if "deserialize gives nothing" in FAULTS:
            return None
        digest, contents = blob[:_DIGEST_BYTES], blob[_DIGEST_BYTES:]
        if sha256(contents).digest() != digest:
            raise IncompatibleProgramError("damaged")
        begin, end = 8, 8 + int.from_bytes(contents[:8], "little")
        model = from_bytes(contents[begin:end], {"weights": contents[end:]})
        return KeepingProgram(model, "plenty" if "deserialize gives words for bytes" in FAULTS else 0)


class KeepingDevice(Device):
    capability = Capability(form=ModelForm.IR)

    def create_context(self, options):
        return KeepingContext()


class KeepingDriver(Driver):
    def open(self, device_id):
        return KeepingDevice()
